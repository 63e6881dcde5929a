"""What a metric of a task is.

Terms: an *item* is what one sample contributes to a score. A *label* is the truth of one sample: arrays
by name. Without labels the outputs of the reference are the truth.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from collage.partitioner.errors import BadInputError

Array = np.ndarray
Arrays = Mapping[str, Array]
Item = Any

LABELS = "labels"
"""The name of a label's only array, where a metric takes one."""


@dataclass(frozen=True)
class Metric(ABC):
    """A score of a model's outputs over samples.

    A metric is *binary* where a row is right or wrong.
    """

    output: str = ""  # the output that it reads; empty for the first that suits

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for the documentation
    higher_is_better: ClassVar[bool] = True
    is_binary: ClassVar[bool] = False
    # Of a metric whose worst is known, the most that one sample can lose.
    is_bounded: ClassVar[bool] = True
    # Of a metric whose score of a model that is of use is above zero.
    is_positive: ClassVar[bool] = True

    @abstractmethod
    def item(self, outputs: Arrays, reference: Arrays, label: Arrays | None) -> Item:
        """What one sample contributes.

        Args:
            outputs: of the model that is judged, by name, in the model's order.
            reference: of the model without any optimization.
            label: the truth; None where the reference is.

        Raises:
            BadInputError: outputs or label are not of the metric's form.
        """

    @abstractmethod
    def score(self, items: Sequence[Item]) -> float:
        """The score of samples."""

    def loss(self, before: Item, after: Item) -> float:
        """How much worse one sample became, in [0, 1] for a bounded metric; 0 where it did not change."""
        return max(0.0, self.worse(self.score([before]), self.score([after])))

    def worse(self, before: float, after: float) -> float:
        """How much worse a score is than another; negative where it is better."""
        return before - after if self.higher_is_better else after - before

    def distance(self, before: float, after: float) -> float:
        """The same on a scale on which the harm of independent errors adds up; negative where it is better."""
        return self.worse(before, after)

    def chosen(self, outputs: Arrays, kinds: str = "f", least_axes: int = 1) -> Array:
        """The output that the metric reads.

        Args:
            outputs: by name.
            kinds: numpy's letters of the types that suit.
            least_axes: with fewer an output does not suit.

        Raises:
            BadInputError: there is none.
        """
        if self.output:
            found = outputs.get(self.output)
            if found is None:
                raise BadInputError(
                    f"evaluate: the model has no output {self.output!r}; it has {', '.join(outputs)}"
                )
            return np.asarray(found)
        for value in outputs.values():
            array = np.asarray(value)
            if array.dtype.kind in kinds and array.ndim >= least_axes:
                return array
        raise BadInputError(
            f"evaluate={self.name} finds no output that suits among {', '.join(outputs)}; name one as "
            f"{self.name}@OUTPUT, or judge the model by a function of your own (docs/accuracy.md)"
        )

    def only_label(self, label: Arrays) -> Array:
        """The array of a label that has one."""
        if len(label) != 1:
            raise BadInputError(
                f"evaluate={self.name} takes one array of labels, not {', '.join(label) or 'none'}"
            )
        return np.asarray(next(iter(label.values())))


def ratio_score(items: Sequence[Item]) -> float:
    """The sum of the items' first numbers over that of their second ones."""
    top, bottom = np.asarray(items, dtype=np.float64).sum(axis=0)
    return float(top / bottom) if bottom else 0.0

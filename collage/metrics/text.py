"""Share of characters read rightly: one minus the character error rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage.metrics.metric import Array, Arrays, Item, Metric, ratio_score
from collage.partitioner.errors import BadInputError

_BLANK = 0


@dataclass(frozen=True)
class Text(Metric):
    """One minus the edits over the characters of the truth (may be negative).

    Floating-point outputs (batch, time, classes) are decoded as CTC does: the largest class of each
    step, repeats joined, the blank (class 0) left out. Whole numbers are tokens. Negative numbers pad.
    """

    name = "text"
    summary = "one minus the character error rate; CTC scores (blank 0) or tokens"
    is_positive = False

    def item(self, outputs: Arrays, reference: Arrays, label: Arrays | None) -> Item:
        read = self._decoded(outputs)
        if label is None:
            truth = self._decoded(reference)
        else:
            given = self.only_label(label)
            if given.dtype.kind not in "iu" or given.size % len(read):
                raise BadInputError(
                    f"evaluate=text needs whole numbers as labels, padded with -1, for {len(read)} lines, not "
                    f"{given.dtype.name} of shape {given.shape}"
                )
            truth = [_plain(row) for row in given.reshape(len(read), -1)]
        edits = sum(edit_distance(a, b) for a, b in zip(read, truth, strict=True))
        return edits, sum(map(len, truth))

    def score(self, items: Sequence[Item]) -> float:
        return 1.0 - ratio_score(items)

    def loss(self, before: Item, after: Item) -> float:
        return float(min(1.0, max(0, after[0] - before[0]) / max(1, before[1])))

    def _decoded(self, outputs: Arrays) -> list[list[int]]:
        array = self.chosen(outputs, "fiu", 2)
        if array.dtype.kind == "f":
            if array.ndim < 3:
                raise BadInputError(
                    "evaluate=text needs scores of shape (batch, time, classes), or tokens"
                )
            steps = array.reshape(-1, *array.shape[-2:]).argmax(axis=-1)
            return [ctc(row) for row in steps]
        return [_plain(row) for row in array.reshape(-1, array.shape[-1])]


def ctc(steps: Array) -> list[int]:
    """The classes of a CTC path without repeats and blanks."""
    changes = np.concatenate([[True], steps[1:] != steps[:-1]]) if len(steps) else np.zeros(0, bool)
    return [int(step) for step in steps[changes] if step != _BLANK]


def edit_distance(one: Sequence[int], other: Sequence[int]) -> int:
    """The fewest insertions, deletions and substitutions between two sequences (Levenshtein)."""
    row = np.arange(len(other) + 1)
    target = np.asarray(other)
    offsets = np.arange(len(other) + 1)
    for number, symbol in enumerate(one, 1):
        best = np.empty_like(row)
        best[0] = number
        best[1:] = np.minimum(row[:-1] + (target != symbol), row[1:] + 1)
        # An insertion costs one for each step to the right.
        row = np.minimum.accumulate(best - offsets) + offsets
    return int(row[-1])


def _plain(row: Array) -> list[int]:
    return [int(token) for token in row if token >= 0]

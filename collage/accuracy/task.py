"""A budget in a metric of the task: its samples, and the drop of plans on them.

Terms: *searched* samples choose plans, *proof* samples are never seen before the end. The *reference* is
ONNX Runtime without optimization. Both sets have its outputs, and labels where the caller gives any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from collage.accuracy.evaluation import EvaluationError, PlanSession
from collage.backends.numerics.tensor_files import read_samples, write_samples
from collage.metrics.drop import Bound, Drop, compare
from collage.metrics.labels import IN_INPUTS, is_label, read_labels, split_labels
from collage.metrics.metric import Arrays, Item, Metric
from collage.metrics.names import parse_metric
from collage.model.reference import Reference, Sample
from collage.model.sampling import MOST_SEARCHED
from collage.options import TuneOptions
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.model import Model
from collage.partitioner.tensor import TensorSpec

_FEWEST = 3
_ROUNDING = 1e-12


@dataclass(frozen=True)
class TaskSamples:
    """Samples that a task is scored on; the arrays are in files, for children."""

    inputs_file: Path
    expected_file: Path  # outputs of the reference
    labels: tuple[Arrays, ...] | None
    count: int

    def inputs(self, specs: Sequence[TensorSpec]) -> list[dict[str, np.ndarray]]:
        """The inputs of each sample."""
        return read_samples(self.inputs_file, specs)

    def reference(self) -> list[dict[str, np.ndarray]]:
        """The outputs of the reference for each sample."""
        return read_samples(self.expected_file, ())

    def items(
        self, metric: Metric, made: Iterable[Arrays], reference: Sequence[Arrays], first: int = 0
    ) -> list[Item]:
        """What samples contribute to a score.

        Args:
            metric: of the task.
            made: outputs of each.
            reference: of the same samples.
            first: the position of the first one among all.
        """
        return [
            metric.item(outputs, wanted, None if self.labels is None else self.labels[first + i])
            for i, (outputs, wanted) in enumerate(zip(made, reference, strict=True))
        ]


@dataclass(frozen=True)
class Task:
    """A metric with its bound and samples."""

    metric: Metric
    bound: Bound
    name: str  # as the caller wrote it
    searched: TaskSamples
    proof: TaskSamples


class SampleSource(Protocol):
    """The samples of a run, and the reference values of some."""

    model: Model
    work_dir: Path
    searched: list[Sample]
    proof_samples: list[Sample]

    def reference(self, samples: Sequence[Sample], name: str) -> Reference:
        """Reference values of samples, in a folder of this name."""


def task_of(
    options: TuneOptions, sampling: SampleSource, inputs: Path | None, labels: Path | None
) -> Task | None:
    """The task of a run; None where the caller names no metric.

    Raises:
        BadInputError: there are too few samples, or labels do not belong to them.
    """
    if options.evaluate is None:
        if labels is not None:
            raise BadInputError("labels are the truth of a metric: name it with evaluate, as top1")
        return None
    if inputs is None:
        raise BadInputError(
            f"evaluate={options.evaluate} scores real samples: give them with --inputs; half of them, "
            "or all but a hundred, are held out for the proof"
        )
    searched, proof = sampling.searched, sampling.proof_samples
    if min(len(searched), len(proof)) < _FEWEST:
        raise BadInputError(
            f"evaluate={options.evaluate} needs at least {2 * _FEWEST} samples in --inputs, half of them "
            f"held out; there are {len(searched) + len(proof)}"
        )
    known = _labels(inputs, labels, len(searched) + len(proof))
    middle = len(searched)
    return Task(
        metric=parse_metric(options.evaluate),
        bound=Bound(options.max_drop, options.at_least, options.at_most),
        name=options.evaluate,
        searched=_kept(sampling, "searched", searched, None if known is None else known[:middle]),
        proof=_kept(sampling, "proof-of-task", proof, None if known is None else known[middle:]),
    )


def _labels(inputs: Path, labels: Path | None, samples: int) -> list[Arrays] | None:
    """Labels of a file of their own, else those in the file of inputs."""
    if labels is not None:
        return read_labels(labels, samples)
    if inputs.is_dir():
        return None
    with np.load(inputs, allow_pickle=False) as stored:
        found = {name: stored[name] for name in stored.files if is_label(name)}
    if not found:
        return None
    plain = {name.removeprefix(f"{IN_INPUTS}."): array for name, array in found.items()}
    return split_labels(plain, samples, f"inputs file {str(inputs)!r}")


def _kept(
    sampling: SampleSource,
    name: str,
    samples: Sequence[Mapping[str, np.ndarray]],
    labels: Sequence[Arrays] | None,
) -> TaskSamples:
    folder = sampling.work_dir / name
    reference = sampling.reference(samples, name)
    made = [
        output for output in sampling.model.index.outputs if output in sampling.model.index.producer
    ]
    inputs_file, expected_file = folder / "task-inputs.npz", folder / "task-expected.npz"
    values = reference.values(made, last=True)
    write_samples(inputs_file, samples)
    write_samples(expected_file, values)
    given = None if labels is None else tuple(labels[: len(samples)])
    return TaskSamples(inputs_file, expected_file, given, len(samples))


@dataclass
class TaskJudge:
    """Judges plans by a task on some samples, and keeps the drop of the latest one.

    Where `proves`, the interval of a drop decides too, but for exact plans. It must keep the bound; where
    the samples are too few for any proof, it must not be wider than that of a plan that changes nothing.

    Raises:
        BadInputError: labels and outputs do not fit together, or the reference misses the bound.
    """

    task: Task
    samples: TaskSamples
    proves: bool = False
    allowed: float = field(init=False)
    latest: Drop | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._reference = self.samples.reference()
        self._before = self.samples.items(self.task.metric, self._reference, self._reference)
        self.allowed = self.task.bound.allowed(self.task.metric, self.task.metric.score(self._before))
        self._believed = max(self.allowed, self._drop(self._before).upper) + _ROUNDING

    @property
    def allowed_distance(self) -> float:
        """What is allowed, as `Metric.distance` has it."""
        metric, reference = self.task.metric, self.task.metric.score(self._before)
        limit = reference - self.allowed if metric.higher_is_better else reference + self.allowed
        return metric.distance(reference, limit)

    def refusal(self, session: PlanSession, is_exact: bool = False) -> str | None:
        """Why a plan does not pass, or None."""
        names = [spec.name for spec in session.outputs if spec.name in self._reference[0]]
        try:
            made = [
                dict(zip(names, session.run(names, sample), strict=True))
                for sample in self.samples.inputs(session.inputs)
            ]
        except EvaluationError as error:
            return str(error)
        after = self.samples.items(self.task.metric, made, self._reference)
        self.latest = drop = self._drop(after)
        said = (
            f"its {self.task.name} is {drop.score:.6g} on {drop.samples} samples, that of the model is "
            f"{drop.reference:.6g}: {drop.worse:.2g} worse, and {drop.allowed:.2g} is allowed"
        )
        if not drop.is_kept:
            return said
        if self.proves and not is_exact and drop.upper > self._believed:
            return f"{said}; it may be {drop.upper:.2g} by the 95 % interval"
        return None

    def _drop(self, after: Sequence[Item]) -> Drop:
        has_labels = self.samples.labels is not None
        return compare(self.task.metric, self._before, after, self.allowed, has_labels)

    def report(self) -> dict[str, Any] | None:
        """What the report says of the plan that passed last."""
        drop = self.latest
        if drop is None:
            return None
        return {
            "metric": self.task.name,
            "truth": "labels" if self.samples.labels is not None else "reference",
            "reference_score": drop.reference,
            "score": drop.score,
            "drop": drop.worse,
            "drop_upper": drop.upper if np.isfinite(drop.upper) else None,
            "allowed": drop.allowed,
            "samples": drop.samples,
            "searched_samples": self.task.searched.count,
            "proven": drop.is_proven,
            "samples_needed": drop.needed,
        }

    def warnings(self) -> list[str]:
        """What the user should know of the proof."""
        drop = self.latest
        if drop is None or drop.is_proven:
            return []
        more = (
            f"about {drop.needed} held-out samples like these would prove it, so give "
            f"{drop.needed + min(drop.needed, MOST_SEARCHED)} with --inputs"
            if drop.needed is not None
            else "no number of samples would, since the drop is as large as the bound"
        )
        upper = f"{drop.upper:.2g}" if np.isfinite(drop.upper) else "not bounded"
        return [
            f"{self.task.name} drops by {drop.worse:.2g} on {drop.samples} held-out samples, within {drop.allowed:.2g}; "
            f"that is not proven: the upper end of the 95 % interval is {upper}; {more}"
        ]

"""A budget in a metric of the task: its samples, and the drop of plans on them.

Terms: *searched* samples choose plans, *proof* samples are never seen before the end. The *reference* is
ONNX Runtime without optimization. Both sets have its outputs, and labels where the caller gives any.

Invariants: outputs are read one sample after another, since those of all may not fit in memory. All plans
together that are scored on the proof pass by chance no more often than the confidence allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from collage.accuracy.evaluation import EvaluationError, PlanSession
from collage.backends.numerics.tensor_files import samples_in_turn, write_samples
from collage.metrics.drop import Bound, Drop, compare
from collage.metrics.intervals import CONFIDENCE
from collage.metrics.labels import IN_INPUTS, is_label, read_labels, split_labels
from collage.metrics.metric import Arrays, Item, Metric
from collage.metrics.names import parse_metric
from collage.model.reference import Reference, Sample
from collage.model.sampling import MOST_SEARCHED
from collage.options import TuneOptions
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.model import Model

_FEWEST = 3
_ROUNDING = 1e-12
# Later plans share so small a doubt that it does not matter.
_MOST_HALVINGS = 30


@dataclass(frozen=True)
class TaskSamples:
    """Samples that a task is scored on; the arrays are in files, for children."""

    inputs_file: Path
    expected_file: Path  # outputs of the reference
    labels: tuple[Arrays, ...] | None
    count: int

    def inputs(self) -> Iterator[dict[str, np.ndarray]]:
        """The inputs of each sample, one after another."""
        return samples_in_turn(self.inputs_file)

    def reference(self, which: slice = slice(None)) -> Iterator[dict[str, np.ndarray]]:
        """The outputs of the reference for each sample, or for some by position, one after another."""
        return samples_in_turn(self.expected_file, which)

    def items(
        self, metric: Metric, made: Iterable[Arrays], reference: Iterable[Arrays], first: int = 0
    ) -> list[Item]:
        """What samples contribute to a score.

        Args:
            metric: of the task.
            made: outputs of each.
            reference: of the same samples.
            first: the position of the first one among all.
        """
        items: list[Item] = []
        # With `enumerate` around it, `zip` would hold the first outputs to the end.
        for outputs, wanted in zip(made, reference, strict=True):
            label = None if self.labels is None else self.labels[first + len(items)]
            items.append(metric.item(outputs, wanted, label))
        return items

    def reference_items(self, metric: Metric) -> list[Item]:
        """What samples contribute to the score of the reference."""
        return [
            metric.item(own, own, None if self.labels is None else self.labels[i])
            for i, own in enumerate(self.reference())
        ]


@dataclass(frozen=True)
class Task:
    """A metric with its bound and samples."""

    metric: Metric
    bound: Bound
    name: str  # as the caller wrote it
    searched: TaskSamples
    proof: TaskSamples
    # By how much a score may be worse, where the bound is one of the score itself; else it is a share of the reference's.
    allowed: float | None = None


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
    metric = parse_metric(options.evaluate)
    bound = Bound(options.max_drop, options.at_least, options.at_most)
    kept = _kept(sampling, "proof-of-task", proof, None if known is None else known[middle:])
    allowed = None
    if bound.max_drop is None:
        # Few samples score by chance a little more or less, so one drop counts for both sets.
        allowed = bound.allowed(metric, metric.score(kept.reference_items(metric)))
    return Task(
        metric=metric,
        bound=bound,
        name=options.evaluate,
        searched=_kept(sampling, "searched", searched, None if known is None else known[:middle]),
        proof=kept,
        allowed=allowed,
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
    Each plan has half the doubt of the one before it, the first one half of all. Where not, exact plans pass unseen.

    Raises:
        BadInputError: labels and outputs do not fit together, or the reference misses the bound.
    """

    task: Task
    samples: TaskSamples
    proves: bool = False
    allowed: float = field(init=False)
    latest: Drop | None = field(init=False, default=None)
    attempts: int = field(init=False, default=0)  # plans that were scored, where it proves

    def __post_init__(self) -> None:
        self._names = tuple(next(self.samples.reference()))
        self._before = self.samples.reference_items(self.task.metric)
        self.allowed = self._allowed()

    def _allowed(self) -> float:
        if self.task.allowed is not None:
            return self.task.allowed
        return self.task.bound.allowed(self.task.metric, self.task.metric.score(self._before))

    @property
    def allowed_distance(self) -> float:
        """What is allowed, as `Metric.distance` has it."""
        metric, reference = self.task.metric, self.task.metric.score(self._before)
        limit = reference - self.allowed if metric.higher_is_better else reference + self.allowed
        return metric.distance(reference, limit)

    def refusal(self, session: PlanSession, is_exact: bool = False) -> str | None:
        """Why a plan does not pass, or None."""
        if is_exact and not self.proves:
            return None
        names = [spec.name for spec in session.outputs if spec.name in self._names]
        made = (
            dict(zip(names, session.run(names, sample), strict=True))
            for sample in self.samples.inputs()
        )
        try:
            after = self.samples.items(self.task.metric, made, self.samples.reference())
        except EvaluationError as error:
            return str(error)
        self.attempts += self.proves
        self.latest = drop = self._drop(after)
        said = (
            f"its {self.task.name} is {drop.score:.6g} on {drop.samples} samples, that of the model is "
            f"{drop.reference:.6g}: {drop.worse:.2g} worse, and {drop.allowed:.2g} is allowed"
        )
        if not drop.is_kept:
            return said
        believed = max(self.allowed, self._drop(self._before).upper) + _ROUNDING
        if self.proves and not is_exact and drop.upper > believed:
            return f"{said}; it may be {drop.upper:.2g} by its interval"
        return None

    def _drop(self, after: Sequence[Item]) -> Drop:
        doubt = (1 - CONFIDENCE) / 2 ** min(self.attempts, _MOST_HALVINGS)
        return compare(
            self.task.metric,
            self._before,
            after,
            self.allowed,
            has_labels=self.samples.labels is not None,
            confidence=1 - doubt,
        )

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
            "proof_attempts": self.attempts,
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
            else "no number of samples to be had would, since the drop is about as large as the bound"
        )
        upper = f"{drop.upper:.2g}" if np.isfinite(drop.upper) else "not bounded"
        return [
            f"{self.task.name} drops by {drop.worse:.2g} on {drop.samples} held-out samples, within {drop.allowed:.2g}; "
            f"that is not proven: the upper end of its interval is {upper}; {more}"
        ]


class TaskProof:
    """Judges plans by a task: on the samples that search, so that few see the others, then on those that prove.

    Raises:
        BadInputError: labels and outputs do not fit together, or the reference misses the bound.
    """

    def __init__(self, task: Task) -> None:
        self._searched = TaskJudge(task, task.searched)
        self._proof = TaskJudge(task, task.proof, proves=True)

    def refusal(self, session: PlanSession, is_exact: bool = False) -> str | None:
        """Why a plan does not pass, or None."""
        return self._searched.refusal(session, is_exact) or self._proof.refusal(session, is_exact)

    @property
    def attempts(self) -> int:
        """Plans that were scored on the samples that prove."""
        return self._proof.attempts

    def report(self) -> dict[str, Any] | None:
        """What the report says of the plan that passed last."""
        return self._proof.report()

    def warnings(self) -> list[str]:
        """What the user should know of the proof."""
        return self._proof.warnings()

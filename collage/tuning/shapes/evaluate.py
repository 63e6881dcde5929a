"""A check decides over the plans of all classes: the caller's own, or a metric on samples of all shapes."""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from collage.accuracy.evaluation import Check, PlanCheck, PlanSession, Served
from collage.accuracy.target_choice import EXACT_ERROR, exact_limit
from collage.accuracy.task import TaskProof, task_of
from collage.backends.contract import SubModel
from collage.backends.numerics.tensor_files import read_samples
from collage.backends.sandbox.run import send_message
from collage.events import Listener
from collage.model.reference import Reference, Sample
from collage.model.sampling import searched_count
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.errors import BadInputError, NoPlanError
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.runtime.by_shape import ByShape, Part, PartedPlan
from collage.runtime.compiled import CompiledRegions
from collage.shapes.classes import Axes, axes_of, extent, sizes_of_arrays
from collage.shapes.space import ShapeSpace
from collage.timing.timed_plan import TimedPlan, identity
from collage.tuning.run import Run, TuneRequest
from collage.tuning.shapes.at_shape import AtShape, data_dependent
from collage.tuning.shapes.choice import ChosenClass
from collage.tuning.shapes.samples import GivenSamples

Choice = tuple[Sequence[ChosenClass], str | None]
# Where plans do not pass, those with larger errors are left out, step by step.
_ERRORS = (math.inf, 1e-1, 5e-2, 2e-2, 1e-2, 3e-3, EXACT_ERROR)


@dataclass(frozen=True)
class ServedClasses(Served):
    """The plans of classes as the child runs them; `steps` are those of all."""

    classes: tuple[tuple[int | None, tuple[tuple[SubModel, Target], ...]], ...] = ()
    axes: Mapping[str, Axes] | None = None
    space: ShapeSpace | None = None
    data_dependent: tuple[str, ...] = ()


class ClassesSession(PlanSession):
    """The plans of classes in a child, called as `collage.load`'s sessions are. Use as a context manager."""

    def __init__(
        self,
        run: Run,
        regions: RegionFiles,
        space: ShapeSpace,
        timed: Sequence[AtShape],
        classes: Sequence[ChosenClass],
    ) -> None:
        folder = Path(tempfile.mkdtemp(prefix="evaluate-", dir=run.work_dir))
        free = regions.model
        plans = [one.plan for one in classes]
        super().__init__(regions, plans[0], folder, timed[0].sampling.threads, cancel=run.cancel)
        parts = [tuple((regions.of(p), p.target) for p in plan.partitions) for plan in plans]
        own = {
            **vars(self._served),
            "steps": tuple(step for steps in parts for step in steps),
            "classes": tuple((one.up_to, steps) for one, steps in zip(classes, parts, strict=True)),
            "axes": {spec.name: axes_of(free)[spec.name] for spec in self.inputs},
            "space": space,
            "data_dependent": data_dependent(free, timed, plans),
        }
        self._served: ServedClasses = ServedClasses(**own)
        self._child = serve_classes

    def _check(self, feed: Mapping[str, np.ndarray]) -> None:
        space, axes = self._served.space, self._served.axes
        assert space is not None and axes is not None
        for spec in self.inputs:
            value = feed.get(spec.name)
            if value is None or value.dtype.name != spec.dtype:
                raise BadInputError(f"input {spec.name!r} must be {spec.dtype}")
        shapes = {spec.name: feed[spec.name].shape for spec in self.inputs}
        sizes, found_at = sizes_of_arrays(shapes, axes, space)
        for name, dim in space.dims.items():
            if name in sizes and sizes[name] not in dim:
                raise BadInputError(
                    f"{found_at[name]}: {name} is {sizes[name]}, which is outside of {dim.text}; widen it with --dim, "
                    "or evaluate other samples"
                )


def serve_classes(served: ServedClasses) -> None:
    """Answer calls until an empty line comes; called in the child."""
    compiled = CompiledRegions(served.threads, served.cache_dir)
    by_shape = ByShape(compiled, served.inputs, served.outputs, served.data_dependent)
    plans = [
        (up_to, PartedPlan(tuple(Part(m.path.parent.name, m, t, "dynamic") for m, t in steps)))
        for up_to, steps in served.classes
    ]
    assert served.space is not None and served.axes is not None
    with (served.folder / "calls").open(encoding="utf-8") as calls:
        for line in calls:
            if not line.strip():
                break
            (feed,) = read_samples(served.folder / line.strip(), served.inputs)
            shapes = {spec.name: feed[spec.name].shape for spec in served.inputs}
            sizes, _ = sizes_of_arrays(shapes, served.axes, served.space)
            own = extent({name: sizes[name] for name in served.space.dims})
            plan = next(plan for up_to, plan in plans if up_to is None or own <= up_to)
            send_message(by_shape.run(plan, feed, served.outputs))
    by_shape.close()
    compiled.close()


@dataclass
class _AllSamples:
    """The samples of all shapes: some to choose plans by, the others to prove the result."""

    model: Model
    work_dir: Path
    searched: list[Sample]
    proof_samples: list[Sample]
    listener: Listener
    cancel: threading.Event | None
    until_s: float  # the first values are there by then

    def reference(self, samples: Sequence[Sample], name: str) -> Reference:
        """Reference values of samples, in a folder of this name."""
        folder = self.work_dir / name
        return Reference(
            self.model,
            samples,
            folder,
            self.listener,
            self.cancel,
            keep_all=False,
            until_s=self.until_s,
        )


class MetricCheck:
    """A metric of the task on samples of all shapes.

    Raises:
        BadInputError: there are too few samples, or labels do not belong to them.
    """

    def __init__(self, run: Run, request: TuneRequest, free: Model, samples: Sequence[Sample]) -> None:
        middle = searched_count(len(samples))
        work_dir = run.work_dir / "metric"
        work_dir.mkdir()
        parts = list(samples[:middle]), list(samples[middle:])
        source = _AllSamples(free, work_dir, *parts, run.listener, run.cancel, run.prepared_by_s)
        task = task_of(request.options, source, request.inputs, request.labels)
        assert task is not None, "a metric is named"
        self._proof = TaskProof(task)

    def refusal(self, session: PlanSession, is_exact: bool = False) -> str | None:
        """Why plans do not pass, or None."""
        return self._proof.refusal(session, is_exact)

    @property
    def attempts(self) -> int:
        """Plans that were scored on the samples that prove."""
        return self._proof.attempts

    @property
    def findings(self) -> dict[str, Any]:
        """What the report says of the plans that passed."""
        return {"evaluation": self._proof.report()}

    @property
    def warnings(self) -> list[str]:
        """What the user should know of the proof."""
        return self._proof.warnings()


def check_of(
    run: Run, request: TuneRequest, free: Model, given: GivenSamples
) -> Check | MetricCheck | None:
    """What decides over plans beside their errors; None without any.

    Raises:
        BadInputError: samples or labels do not fit the metric, or labels are given without one.
    """
    if request.options.evaluate is None and request.labels is None:
        return request.check
    return MetricCheck(run, request, free, given.samples)


@dataclass(frozen=True)
class Judge:
    """A check with the plans that it decides over.

    Args:
        check: gets a session that takes every shape.
        timed: the representative shapes.
        choose: the classes of the plans that may be chosen.
        session: of classes, as a context manager.
    """

    check: PlanCheck
    timed: Sequence[AtShape]
    choose: Callable[[], Choice]
    session: Callable[[Sequence[ChosenClass]], Any]

    def beside_exact(self) -> Judge:
        """The same, with a bound relative to exact plans as a number."""
        if not isinstance(self.check, Check) or self.check.max_drop is None:
            return self
        exact, _ = _within(self._exact_limit, self.timed, self.choose)
        with self.session(exact) as opened:
            return replace(self, check=self.check.beside(opened))

    def refusal(self, classes: Sequence[ChosenClass]) -> str | None:
        """Why classes do not pass, or None."""
        are_exact = all(
            self._is_exact(self.timed[i].find(one.plan, self.timed[i].dynamic))
            for one in classes
            for i in one.shapes
        )
        with self.session(classes) as opened:
            return self.check.refusal(opened, are_exact)

    def covers(self, one: ChosenClass, hot: Plan) -> bool:
        """Whether a hot plan of a class that passed may run: the check has seen it, or it is exact."""
        if identity(hot) == identity(one.plan):
            return True
        return all(self._is_exact(self.timed[i].find(hot, self.timed[i].fixed)) for i in one.shapes)

    def _is_exact(self, entry: TimedPlan | None) -> bool:
        return entry is not None and entry.exactness <= self._exact_limit

    @property
    def _exact_limit(self) -> float:
        return exact_limit(entry.exactness for at in self.timed for entry in (*at.dynamic, *at.fixed))

    @property
    def findings(self) -> dict[str, Any]:
        """What the report says of the plans that passed last."""
        return self.check.findings if isinstance(self.check, MetricCheck) else {}

    @property
    def warnings(self) -> list[str]:
        """What the user should know of the check."""
        return self.check.warnings if isinstance(self.check, MetricCheck) else []


def evaluated(judge: Judge) -> Choice:
    """The fastest classes that pass; a bound of `judge` is a number.

    Raises:
        NoPlanError: none passes; the message has the value of each.
    """
    refused: dict[tuple[object, ...], str] = {}
    for most_error in _ERRORS:
        try:
            classes, note = _within(most_error, judge.timed, judge.choose)
        except NoPlanError as error:
            refused["none",] = str(error)
            break
        key = tuple((one.up_to, identity(one.plan)) for one in classes)
        if key in refused:
            continue
        reason = judge.refusal(classes)
        if reason is None:
            return [_judged(judge, one) for one in classes], note
        refused[key] = reason
    raise NoPlanError(f"no plans for all sizes pass the evaluation: {'; '.join(refused.values())}")


def _within(most_error: float, timed: Sequence[AtShape], choose: Callable[[], Choice]) -> Choice:
    for at in timed:
        at.most_error = most_error
    return choose()


def _judged(judge: Judge, one: ChosenClass) -> ChosenClass:
    """The class without a hot plan that the check does not cover."""
    return one if one.hot is None or judge.covers(one, one.hot) else replace(one, hot=None)

"""One representative shape: the model bound to it, and plans timed there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from collage.artifact.artifact import crossing_values
from collage.backends.options import SHORT_CALL_US, THREADS
from collage.backends.registry import target_spec, tunable_options
from collage.deadline import NO_DEADLINE, Deadline
from collage.model.free_regions import Form, FreeRegions, form_of
from collage.model.sampling import Sampling
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.search.fixed_plans import respects, single_plan
from collage.timing.decision import choose, proven
from collage.timing.estimates import Estimates
from collage.timing.plan_timer import PlanTimer
from collage.timing.request import NO_TIME, without_plans
from collage.timing.timed_plan import TimedPlan, identity
from collage.tuning.run import Run, TuneRequest
from collage.tuning.shapes.samples import BoundShape
from collage.tuning.time_left import NO_LIMIT, TimeLeft

# Plans so much slower than the fastest are timed in one comparison only.
_NEAR = 1.15
# There are several shapes, so blocks are shorter than those of one.
_BLOCK_S = 0.06
_ANY_SHAPE = ", any shape"
# Of the time for a shape, what one of two comparisons may measure for; the rest is for compiling.
_TIMING_SHARE = 0.2


class AtShape:
    """Plans timed at one shape, each compiled with free dimensions and for this shape alone.

    Args:
        bound: the model at the shape.
        sampling: its inputs there.
        exact: sub-models at the shape.
        free: sub-models with free dimensions.
        timer: times plans; those whose entries have no sub-models of their own are compiled for this shape.
        targets: the user's.
        tolerance: plans with a larger error are not chosen.
        deadline: no more plans are compiled for this shape alone after its search.
        left: the time of the run.

    Attributes:
        most_error: plans with a larger one by the metric `max` are not chosen either.
    """

    def __init__(
        self,
        bound: BoundShape,
        sampling: Sampling,
        exact: RegionFiles,
        free: RegionFiles,
        timer: PlanTimer,
        targets: Sequence[Target],
        tolerance: float,
        deadline: Deadline = NO_DEADLINE,
        left: TimeLeft = NO_LIMIT,
    ) -> None:
        self._deadline, self.left = deadline, left
        self.bound, self.sampling, self.exact = bound, sampling, exact
        self.tolerance, self.most_error = tolerance, math.inf
        self._free, self._timer, self._targets = free, timer, tuple(targets)
        self.dynamic: list[TimedPlan] = []
        self.fixed: list[TimedPlan] = []

    def time(
        self,
        plans: Sequence[tuple[str, Plan]],
        refusal: Callable[[Plan, bool], str | None] = lambda plan, is_alone: None,
        needed: int | None = None,
    ) -> None:
        """Time plans in both ways, then those that are near the fastest once more, beside one-thread variants.

        Args:
            plans: with their names.
            refusal: why a plan is not tried, compiled for any shape or for this one alone; or None.
            needed: so many of the first plans are compiled for any shape however late it is; None for all. The others
                are where none of these may be returned.
        """
        for entry in self._add(plans):
            entry.refused = refusal(entry.plan, entry.regions is None)
        any_shape, alone = (
            [entry for entry in known if entry.refused is None] for known in (self.dynamic, self.fixed)
        )
        if not any_shape:
            return
        first = len(any_shape) if needed is None else min(needed, len(any_shape))
        self._timer.time([*any_shape, *alone], needed=first, deadline=self._deadline)
        for entry in any_shape:
            if entry.failure == NO_TIME and self.best() is None:
                name = entry.name.removesuffix(_ANY_SHAPE)
                self._timer.time(self._add([(name, entry.plan)])[:1])
        near = [entry for known in (self.dynamic, self.fixed) for entry in self._near(known)]
        variants = [
            (f"single {target}", single_plan(self.bound.model, target))
            for target in self._on_one_thread(near)
        ]
        count = len(near) + 2 * len(variants)
        if count < 2 or not self._deadline.fits(self._timer.expected_s(count)):
            return
        more = self._add(variants)
        for entry in more:
            entry.refused = refusal(entry.plan, entry.regions is None)
        more = [entry for entry in more if entry.refused is None]
        self._timer.time(more, again=near, deadline=self._deadline)

    def time_too(self, plan: Plan) -> None:
        """Time another plan for any shape beside the best one, if it was not timed here and there is time."""
        near = self._near(self.dynamic)
        is_new = all(identity(entry.plan) != identity(plan) for entry in self.dynamic)
        if is_new and self.left.fits(self._timer.expected_s(1 + len(near))):
            self._timer.time(self._add([("plan of a neighbor", plan)])[:1], again=near)

    def _add(self, plans: Sequence[tuple[str, Plan]]) -> list[TimedPlan]:
        dynamic = [TimedPlan(p, f"{name}{_ANY_SHAPE}", regions=self._free) for name, p in plans]
        fixed = [TimedPlan(p, f"{name}, this shape alone") for name, p in plans]
        self.dynamic += dynamic
        self.fixed += fixed
        return [*dynamic, *fixed]

    def _near(self, entries: Sequence[TimedPlan]) -> list[TimedPlan]:
        fit = self._fit(entries)
        least = min(map(self.estimates.ratio, fit), default=0.0)
        return [entry for entry in fit if self.estimates.ratio(entry) <= _NEAR * least]

    def _on_one_thread(self, near: Sequence[TimedPlan]) -> list[Target]:
        """Variants of single targets whose calls are so short that more threads may not pay."""
        threads = self.sampling.threads
        found = [
            target.with_options(**{THREADS.name: "1"})
            for target in dict.fromkeys(
                entry.plan.partitions[0].target
                for entry in near
                if len(entry.plan.partitions) == 1 and entry.latency_us < SHORT_CALL_US
            )
            if "1" in tunable_options(target, threads).get(THREADS.name, ())
        ]
        return [target for target in found if target not in self._targets]

    @property
    def estimates(self) -> Estimates:
        """How the plans compare."""
        return self._timer.standings.estimates

    @property
    def plan_s(self) -> float:
        """Seconds that one plan took in the latest comparison here: to compile, to verify, and to time."""
        return self._timer.plan_s

    @property
    def untried(self) -> int:
        """How many plans for any shape there was no time for."""
        return sum(entry.failure == NO_TIME for entry in self.dynamic)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know of how plans were timed here."""
        return self._timer.warnings()

    def best(self, form: Form | None = None) -> TimedPlan | None:
        """The plan for any shape that wins here, among those of a form or all; None where none runs."""
        fit = [e for e in self._fit(self.dynamic) if form is None or form_of(e.plan) == form]
        return choose(fit, self.estimates) if fit else None

    def hot(self, plan: TimedPlan) -> TimedPlan | None:
        """The plan compiled for this shape alone that is proven faster than another plan here; None without any."""
        fit = [e for e in self._fit(self.fixed) if form_of(e.plan) == form_of(plan.plan)]
        if not fit:
            return None
        fastest = choose(fit, self.estimates)
        return fastest if proven(fastest, plan, self.estimates) else None

    def find(self, plan: Plan, entries: Sequence[TimedPlan]) -> TimedPlan | None:
        """The entry of a plan among some; None where it was not timed or may not be returned."""
        return next((e for e in self._fit(entries) if identity(e.plan) == identity(plan)), None)

    def latency_us(self, entry: TimedPlan | None, beside: TimedPlan) -> float:
        """What a plan takes at the pace of another one; infinite where it does not run."""
        return math.inf if entry is None else self.estimates.latency_us(entry, beside)[0]

    def singles(self) -> Mapping[Target, tuple[TimedPlan, TimedPlan]]:
        """Of each of the user's targets its entries for any shape and for this one alone."""
        whole = {
            free.plan.partitions[0].target: (free, fixed)
            for free, fixed in zip(self.dynamic, self.fixed, strict=True)
            if len(free.plan.partitions) == 1
        }
        return {target: whole[target] for target in self._targets}

    def _fit(self, entries: Sequence[TimedPlan]) -> list[TimedPlan]:
        may_win = self._timer.standings.may_win
        return [e for e in entries if may_win(e) and e.exactness <= self.most_error]


def at_shape(
    run: Run,
    request: TuneRequest,
    bound: BoundShape,
    sampling: Sampling,
    free: FreeRegions,
    tolerance: float,
    seconds: float = math.inf,
    left: TimeLeft = NO_LIMIT,
    only: Plan | None = None,
) -> AtShape:
    """A representative shape, where nothing is timed yet.

    Args:
        run: what the stages run with.
        request: targets and options.
        bound: the model at the shape.
        sampling: its inputs there.
        free: sub-models with free dimensions.
        tolerance: plans with a larger error are not chosen.
        seconds: for timing plans there.
        left: the time of the run.
        only: the plan that is to be returned; the others are timed beside it. None where the fastest is.
    """
    sampling.hurry(time.monotonic() + seconds)
    exact = free.at(bound.model, sampling.work_dir / "regions")
    specs = tuple(map(target_spec, request.targets))
    constraints = request.options.constraints()
    template = without_plans(sampling)
    budget_s = min(template.budget_s, _TIMING_SHARE * seconds)
    timer = PlanTimer(
        exact,
        replace(template, block_s=_BLOCK_S, budget_s=budget_s, cache_dir=compiled_dir(run)),
        run.listener,
        cancel=run.cancel,
        eligible=lambda plan: (
            (only is None or identity(plan) == identity(only))
            and respects(bound.model.index, constraints, specs, plan)
        ),
        tolerance=tolerance,
        runner=run.runner,
    )
    end_s = time.monotonic() + seconds
    deadline = Deadline(search_s=end_s - budget_s, compare_s=end_s, confirm_s=end_s, end_s=end_s)
    return AtShape(bound, sampling, exact, free, timer, request.targets, tolerance, deadline, left)


def compiled_dir(run: Run) -> Path:
    """Where what takes every shape is kept once it is compiled, so that each is compiled once."""
    folder = run.work_dir / "compiled"
    folder.mkdir(exist_ok=True)
    return folder


def plans_to_time(
    model: Model, targets: Sequence[Target], found: Sequence[Plan]
) -> list[tuple[str, Plan]]:
    """The whole model on each target, and plans that were found, each once."""
    named = [(f"single {target}", single_plan(model, target)) for target in targets]
    for plan in found:
        if all(identity(plan) != identity(known) for _, known in named):
            number = len(named) - len(targets)
            named.append((f"found plan {number + 1}" if number else "found plan", plan))
    return named


def data_dependent(free: Model, timed: Sequence[AtShape], plans: Sequence[Plan]) -> tuple[str, ...]:
    """Values between partitions, and outputs, whose shape does not follow from the sizes."""
    crossing = dict.fromkeys(name for plan in plans for name in crossing_values(free, plan))
    return tuple(
        name
        for name in crossing
        if not all(at.bound.model.index.values[name].is_static for at in timed)
    )

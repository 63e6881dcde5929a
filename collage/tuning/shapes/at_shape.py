"""One representative shape: the model bound to it, and plans timed there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.backends.registry import target_spec
from collage.model.binding import bind
from collage.model.sampling import Sampling
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.errors import ModelError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import NormalizedInfo
from collage.partitioner.target import Target
from collage.search.fixed_plans import respects, single_plan
from collage.shapes.classes import extent
from collage.shapes.space import Shape
from collage.timing.decision import choose
from collage.timing.estimates import Estimates
from collage.timing.plan_timer import PlanTimer
from collage.timing.request import without_plans
from collage.timing.timed_plan import TimedPlan, clearly_faster, identity
from collage.tuning.run import Run, TuneRequest

# Plans so much slower than the fastest are timed in one comparison only.
_NEAR = 1.15


@dataclass(frozen=True)
class BoundShape:
    """The model at one shape; its nodes are those of the model with free dimensions."""

    shape: Shape
    model: Model
    info: NormalizedInfo

    @property
    def text(self) -> str:
        """The sizes as `length=16, batch=1`."""
        return ", ".join(f"{name}={size}" for name, size in self.shape.sizes.items())

    @property
    def extent(self) -> int:
        """By what classes are told apart."""
        return extent(self.shape.sizes)


def bind_shape(run: Run, free: Model, shape: Shape, number: int) -> BoundShape:
    """Bind the model to a representative shape.

    Raises:
        ModelError: the model cannot have these sizes.
    """
    bound = BoundShape(shape, free, NormalizedInfo(free.path, (), ()))
    try:
        model, info = bind(free, run.work_dir / f"shape-{number}" / "model", shape.sizes, run.cancel)
    except ModelError as error:
        raise ModelError(f"the model cannot have {bound.text}: {error}") from None
    return BoundShape(shape, model, info)


class AtShape:
    """Plans timed at one shape, each compiled with free dimensions and for this shape alone.

    Args:
        run: what the stages run with.
        request: targets and options.
        bound: the model at the shape.
        free: sub-models with free dimensions.
        number: of the shape.
        tolerance: plans with a larger error are not chosen.
    """

    def __init__(
        self,
        run: Run,
        request: TuneRequest,
        bound: BoundShape,
        free: RegionFiles,
        number: int,
        tolerance: float,
    ) -> None:
        self.bound, self.tolerance = bound, tolerance
        self._request, self._free = request, free
        work_dir = run.work_dir / f"shape-{number}"
        self.sampling = Sampling(
            model=bound.model,
            info=bound.info,
            options=request.options,
            work_dir=work_dir,
            inputs=None,
            hold_out=False,
            listener=run.listener,
            cancel=run.cancel,
        )
        try:
            self.sampling.refuse_nan()
        except ModelError as error:
            raise ModelError(f"the model cannot run with {bound.text}: {error}") from None
        self.exact = RegionFiles(bound.model, work_dir / "regions")
        specs = tuple(map(target_spec, request.targets))
        constraints = request.options.constraints()
        self._timer = PlanTimer(
            self.exact,
            without_plans(self.sampling),
            run.listener,
            cancel=run.cancel,
            eligible=lambda plan: respects(bound.model.index, constraints, specs, plan),
            tolerance=tolerance,
            runner=run.runner,
        )
        self.dynamic: list[TimedPlan] = []
        self.fixed: list[TimedPlan] = []

    def time(self, plans: Sequence[tuple[str, Plan]]) -> None:
        """Time plans in both ways, then those that are near the fastest once more.

        Args:
            plans: with their names.
        """
        for name, plan in plans:
            self.dynamic.append(TimedPlan(plan, f"{name}, any shape", regions=self._free))
            self.fixed.append(TimedPlan(plan, f"{name}, this shape alone"))
        entries = [*self.dynamic, *self.fixed]
        self._timer.time(entries, needed=len(entries) - 1)
        near = [
            *_near(self._fit(self.dynamic), self.estimates),
            *_near(self._fit(self.fixed), self.estimates),
        ]
        if len(near) > 1:
            self._timer.time([], again=near)

    @property
    def estimates(self) -> Estimates:
        """How the plans compare."""
        return self._timer.standings.estimates

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know of how plans were timed here."""
        return self._timer.warnings()

    def best(self) -> TimedPlan | None:
        """The plan for any shape that wins here; None where none runs."""
        fit = self._fit(self.dynamic)
        return choose(fit, self.estimates) if fit else None

    def hot(self, plan: TimedPlan) -> TimedPlan | None:
        """The plan compiled for this shape alone that is proven faster than another plan here; None without any."""
        fit = self._fit(self.fixed)
        if not fit:
            return None
        fastest = choose(fit, self.estimates)
        return (
            fastest
            if self.estimates.between(plan, fastest).ratio > 1 and clearly_faster(fastest, plan)
            else None
        )

    def find(self, plan: Plan, entries: Sequence[TimedPlan]) -> TimedPlan | None:
        """The entry of a plan among some; None where it was not timed or may not be returned."""
        return next((e for e in self._fit(entries) if identity(e.plan) == identity(plan)), None)

    def latency_us(self, entry: TimedPlan | None, beside: TimedPlan) -> float:
        """What a plan takes at the pace of another one; infinite where it does not run."""
        return math.inf if entry is None else self.estimates.latency_us(entry, beside)[0]

    def singles(self) -> Mapping[Target, tuple[TimedPlan, TimedPlan]]:
        """Of each single target its entries for any shape and for this one alone."""
        pairs = zip(self.dynamic, self.fixed, strict=True)
        return {
            free.plan.partitions[0].target: (free, fixed)
            for free, fixed in pairs
            if len(free.plan.partitions) == 1
        }

    def _fit(self, entries: Sequence[TimedPlan]) -> list[TimedPlan]:
        return [entry for entry in entries if self._timer.standings.may_win(entry)]


def plans_to_time(
    model: Model, targets: Sequence[Target], found: Plan | None
) -> list[tuple[str, Plan]]:
    """The whole model on each target, and a plan that was found."""
    named = [(f"single {target}", single_plan(model, target)) for target in targets]
    if found is not None and all(identity(found) != identity(plan) for _, plan in named):
        named.append(("found plan", found))
    return named


def _near(entries: Sequence[TimedPlan], estimates: Estimates) -> list[TimedPlan]:
    least = min(map(estimates.ratio, entries), default=0.0)
    return [entry for entry in entries if estimates.ratio(entry) <= _NEAR * least]

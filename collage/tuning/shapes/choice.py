"""Which plan runs which shapes: one for all, unless others are proven to be faster for some.

Invariants: a border between two classes lies where the measured times of their plans cross. A class is made only where
its plan is proven faster at a representative shape. All plans have one form (`collage.model.free_regions`): what one of
them has as int8 in the file, all have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from collage.model.free_regions import Form, form_of
from collage.partitioner.candidate import Plan
from collage.partitioner.errors import NoPlanError
from collage.timing.decision import complexity, proven
from collage.timing.timed_plan import TimedPlan, identity
from collage.tuning.shapes.at_shape import AtShape


@dataclass(frozen=True)
class ChosenClass:
    """Shapes that are run alike.

    Args:
        up_to: the largest extent; None for the last class.
        plan: for every shape.
        shapes: positions of its representative shapes, by extent.
        hot: the plan that is faster where it is compiled for one shape alone; None without any.
    """

    up_to: int | None
    plan: Plan
    shapes: tuple[int, ...]
    hot: Plan | None = None


def choose_classes(timed: Sequence[AtShape]) -> list[ChosenClass]:
    """The classes of shapes with their plans.

    Args:
        timed: the representative shapes; plans that compete at a border are timed there once more.

    Raises:
        NoPlanError: at some shape no plan takes any shape.
    """
    forms = dict.fromkeys(form_of(entry.plan) for at in timed for entry in at.dynamic)
    found: list[ChosenClass] | None = None
    failure: NoPlanError | None = None
    # The fewer partitions are rewritten, the simpler.
    for form in sorted(forms, key=len):
        try:
            classes = _of_form(timed, form)
        except NoPlanError as error:
            failure = failure or error
            continue
        if found is None or _is_better(timed, classes, found):
            found = classes
    if found is None:
        raise failure or NoPlanError("no plan was timed")
    return found


def _is_better(
    timed: Sequence[AtShape], some: Sequence[ChosenClass], others: Sequence[ChosenClass]
) -> bool:
    """Whether classes take less time, and are proven faster than others at some shape."""
    mine, theirs = ({i: one.plan for one in known for i in one.shapes} for known in (some, others))
    totals = [
        math.fsum(
            at.bound.shape.weight * at.latency_us(at.find(plans[i], at.dynamic), _best(at))
            for i, at in enumerate(timed)
        )
        for plans in (mine, theirs)
    ]
    return totals[0] < totals[1] and any(_proven(at, mine[i], theirs[i]) for i, at in enumerate(timed))


def _of_form(timed: Sequence[AtShape], form: Form) -> list[ChosenClass]:
    """The classes by plans of one form alone."""
    best = [_best(at, form) for at in timed]
    common = _common(timed, best, form)
    chosen = []
    for at, own in zip(timed, best, strict=True):
        plan = own.plan if common is None or _beats(at, own, common) else common
        entry = at.find(plan, at.dynamic)
        assert entry is not None, "it was timed here"
        chosen.append((plan, at.hot(entry)))
    order = sorted(range(len(timed)), key=lambda i: timed[i].bound.extent)
    for _, same in groupby(order, key=lambda i: timed[i].bound.extent):
        _agree(timed, list(same), chosen)
    runs = [list(run) for _, run in groupby(order, key=lambda i: _alike(*chosen[i]))]
    classes = []
    for run, following in zip(runs, [*runs[1:], None], strict=True):
        up_to = None
        if following is not None:
            left, right = run[-1], following[0]
            up_to = border(timed[left], timed[right], chosen[left][0], chosen[right][0])
        plan, hot = chosen[run[0]]
        classes.append(ChosenClass(up_to, plan, tuple(run), None if hot is None else hot.plan))
    return classes


def _agree(
    timed: Sequence[AtShape], same: Sequence[int], chosen: list[tuple[Plan, TimedPlan | None]]
) -> None:
    """Give shapes of one extent one plan, since no border can lie between them; changes what was chosen.

    Raises:
        NoPlanError: no plan runs at all of them.
    """
    if len({_alike(*chosen[i]) for i in same}) < 2:
        return
    own = [timed[i] for i in same]
    form = form_of(chosen[same[0]][0])
    plan = _common(own, [_best(at, form) for at in own], form)
    if plan is None:
        where = " and ".join(at.bound.text for at in own)
        raise NoPlanError(
            f"no plan runs at {where}, which have the same product of sizes; give fewer sizes with --dim"
        )
    heaviest = max(own, key=lambda at: at.bound.shape.weight)
    entry = heaviest.find(plan, heaviest.dynamic)
    assert entry is not None, "the plan runs at all of them"
    for i in same:
        chosen[i] = plan, heaviest.hot(entry)


def border(left: AtShape, right: AtShape, first: Plan, second: Plan) -> int:
    """The largest extent at which the first plan is used: where the times of both cross between two shapes."""
    low, high = left.bound.extent, right.bound.extent
    if identity(first) == identity(second):
        return max(low, min(high - 1, math.isqrt(low * high)))
    for at, plan in ((left, second), (right, first)):
        at.time_too(plan)
    before, after = _lead(left, first, second), _lead(right, second, first)
    if math.isinf(before) or math.isinf(after):
        # Of a plan that does not run at both shapes nobody knows how far it does.
        share = 0.5 if before == after else float(math.isinf(before))
    else:
        share = before / (before + after) if before + after > 0 else 0.5
    return max(low, min(high - 1, int(low + (high - low) * share)))


def _alike(plan: Plan, hot: TimedPlan | None) -> tuple[object, object]:
    return identity(plan), None if hot is None else identity(hot.plan)


def _lead(at: AtShape, plan: Plan, other: Plan) -> float:
    """By how many microseconds a plan is faster than another; infinite where only that one runs."""
    beside = _best(at)
    mine, others = (at.latency_us(at.find(p, at.dynamic), beside) for p in (plan, other))
    return max(0.0, others - mine) if math.isfinite(mine) else 0.0


def _best(at: AtShape, form: Form | None = None) -> TimedPlan:
    best = at.best(form)
    if best is None:
        failures = "; ".join(
            f"{e.name}: {e.failure or 'its error is too large'}"
            for e in at.dynamic
            if form is None or form_of(e.plan) == form
        )
        raise NoPlanError(
            f"no target runs the model with free dimensions at {at.bound.text} ({failures}); add one that does, such as "
            "onnxruntime, or give each dimension one size"
        )
    return best


def _common(timed: Sequence[AtShape], best: Sequence[TimedPlan], form: Form) -> Plan | None:
    """The plan of a form with the least weighted time over all shapes; None where none runs at all of them.

    One with more partitions must be proven faster at some shape than the simpler one that it replaces.
    """
    known = {
        identity(entry.plan): entry.plan
        for at in timed
        for entry in at.dynamic
        if form_of(entry.plan) == form
    }
    found: Plan | None = None
    least = math.inf
    for plan in sorted(known.values(), key=complexity):
        total = math.fsum(
            at.bound.shape.weight * at.latency_us(at.find(plan, at.dynamic), beside)
            for at, beside in zip(timed, best, strict=True)
        )
        if total >= least:
            continue
        is_simple = found is None or complexity(plan) == complexity(found)
        if is_simple or any(_proven(at, plan, found) for at in timed):
            found, least = plan, total
    return found


def _proven(at: AtShape, plan: Plan, other: Plan | None) -> bool:
    """Whether a plan is proven faster than another at a shape."""
    fast, slow = (None if p is None else at.find(p, at.dynamic) for p in (plan, other))
    return fast is not None and slow is not None and proven(fast, slow, at.estimates)


def _beats(at: AtShape, own: TimedPlan, common: Plan) -> bool:
    """Whether the best plan at a shape is proven faster there than the common one."""
    return at.find(common, at.dynamic) is None or _proven(at, own.plan, common)

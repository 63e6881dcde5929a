"""Which plan runs which shapes: one for all, unless others are proven to be faster for some.

Invariants: a border between two classes lies where the measured times of their plans cross. A class is made only where
its plan is proven faster at a representative shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from collage.partitioner.candidate import Plan
from collage.partitioner.errors import NoPlanError
from collage.timing.timed_plan import TimedPlan, clearly_faster, identity
from collage.tuning.shapes.at_shape import AtShape


@dataclass(frozen=True)
class ChosenClass:
    """Shapes with one plan.

    Args:
        up_to: the largest extent; None for the last class.
        plan: for every shape.
        shapes: positions of its representative shapes, by extent.
    """

    up_to: int | None
    plan: Plan
    shapes: tuple[int, ...]


def choose_classes(timed: Sequence[AtShape]) -> list[ChosenClass]:
    """The classes of shapes with their plans.

    Args:
        timed: the representative shapes.

    Raises:
        NoPlanError: at some shape no plan takes any shape.
    """
    best = [_best(at) for at in timed]
    common = _common(timed, best)
    plans = [
        common if common is not None and not _beats(at, own, common) else own.plan
        for at, own in zip(timed, best, strict=True)
    ]
    order = sorted(range(len(timed)), key=lambda i: timed[i].bound.extent)
    runs = [list(run) for _, run in groupby(order, key=lambda i: identity(plans[i]))]
    classes = []
    for run, following in zip(runs, [*runs[1:], None], strict=True):
        up_to = None
        if following is not None:
            left, right = timed[run[-1]], timed[following[0]]
            up_to = border(left, right, plans[run[-1]], plans[following[0]])
        classes.append(ChosenClass(up_to, plans[run[0]], tuple(run)))
    return classes


def border(left: AtShape, right: AtShape, first: Plan, second: Plan) -> int:
    """The largest extent at which the first plan is the faster one, where the times of both cross between two shapes."""
    low, high = left.bound.extent, right.bound.extent
    before, after = _lead(left, first, second), _lead(right, second, first)
    if not (math.isfinite(before) and math.isfinite(after)) or before + after <= 0:
        # One of them does not run at one of the shapes.
        return low if not math.isfinite(before) else high - 1
    return min(high - 1, max(low, int(low + (high - low) * before / (before + after))))


def _lead(at: AtShape, plan: Plan, other: Plan) -> float:
    """By how many microseconds a plan is faster than another."""
    beside = _best(at)
    mine, others = (at.latency_us(at.find(p, at.dynamic), beside) for p in (plan, other))
    return max(0.0, others - mine)


def _best(at: AtShape) -> TimedPlan:
    best = at.best()
    if best is None:
        failures = "; ".join(f"{e.name}: {e.failure or 'its error is too large'}" for e in at.dynamic)
        raise NoPlanError(
            f"no target runs the model with free dimensions at {at.bound.text} ({failures}); add one that does, such as "
            "onnxruntime, or give each dimension one size"
        )
    return best


def _common(timed: Sequence[AtShape], best: Sequence[TimedPlan]) -> Plan | None:
    """The plan with the least weighted time over all shapes; None where none runs at all of them."""
    known = {identity(entry.plan): entry.plan for at in timed for entry in at.dynamic}
    totals = []
    for plan in known.values():
        total = sum(
            at.bound.shape.weight * at.latency_us(at.find(plan, at.dynamic), beside)
            for at, beside in zip(timed, best, strict=True)
        )
        totals.append((total, len(plan.partitions), plan))
    total, _, plan = min(totals, key=lambda entry: entry[:2])
    return plan if math.isfinite(total) else None


def _beats(at: AtShape, own: TimedPlan, common: Plan) -> bool:
    """Whether the best plan at a shape is proven faster there than the common one."""
    other = at.find(common, at.dynamic)
    if other is None:
        return True
    return at.estimates.between(other, own).ratio > 1 and clearly_faster(own, other)

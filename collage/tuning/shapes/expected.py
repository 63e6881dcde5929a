"""What plans are expected to take at a shape, by fits through the shapes that were measured before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from collage.costs.shape_fit import ShapeFit
from collage.costs.work import work_of
from collage.partitioner.candidate import Plan
from collage.timing.timed_plan import TimedPlan, identity
from collage.tuning.shapes.at_shape import AtShape
from collage.tuning.shapes.samples import BoundShape

_LEFT_OUT = "by its times at other shapes it gains nothing here"


def fastest_first(
    plans: Sequence[tuple[str, Plan]], measured: Sequence[AtShape], report: Mapping[str, Any]
) -> list[tuple[str, Plan]]:
    """Plans in the order in which they are worth their time at one more shape; what failed comes last.

    Args:
        plans: with their names.
        measured: shapes where they were timed; the report counts where there is none.
        report: of the search at one shape, which found all plans that are no single target.
    """
    alone_us = {row["target"]: row.get("latency_us", math.inf) for row in report["baselines"]}

    def cost(plan: Plan) -> float:
        if not measured:
            known_us = alone_us.get(str(plan.partitions[0].target), 0.0)
            return known_us if len(plan.partitions) == 1 else 0.0
        found = [(at, at.find(plan, at.dynamic)) for at in measured]
        return math.fsum(
            math.inf if entry is None else at.estimates.ratio(entry) for at, entry in found
        )

    return sorted(plans, key=lambda named: cost(named[1]))


class Expected:
    """Fits of plans through the shapes that were measured.

    Args:
        measured: representative shapes where plans were timed.
        bound: the shape that is asked about.
    """

    def __init__(self, measured: Sequence[AtShape], bound: BoundShape) -> None:
        self._work = work_of(bound.model.index)
        self._measured = [(work_of(at.bound.model.index), at) for at in measured]

    def refusal(self, plan: Plan, is_alone: bool) -> str | None:
        """Why a plan need not be timed here, or None: it fails at any size, or compiled for this one it gains nothing.

        Args:
            is_alone: whether it is to be compiled for this shape alone.
        """
        for _, at in self._measured:
            for entry in at.fixed if is_alone else at.dynamic:
                if entry.failed_finally and identity(entry.plan) == identity(plan):
                    return f"at {at.bound.text}: {entry.failure}"
        return _LEFT_OUT if is_alone and self.is_no_faster_alone(plan) else None

    def is_no_faster_alone(self, plan: Plan) -> bool:
        """Whether a plan compiled for this shape alone is expected to be no faster than one for any shape.

        False where the fits of both are not trusted: then it is measured.
        """
        alone = self._fit([(work, at.fixed, at) for work, at in self._measured], plan)
        any_shape = [
            fit.at(self._work)
            for entry in (self._measured[0][1].dynamic if self._measured else ())
            if (
                fit := self._fit([(w, at.dynamic, at) for w, at in self._measured], entry.plan)
            ).is_trusted
        ]
        known = [us for us in any_shape if us is not None]
        expected_us = alone.at(self._work) if alone.is_trusted else None
        return expected_us is not None and bool(known) and expected_us >= min(known)

    def _fit(
        self, shapes: Sequence[tuple[float, Sequence[TimedPlan], AtShape]], plan: Plan
    ) -> ShapeFit:
        points = []
        for work, entries, at in shapes:
            found = next((e for e in entries if identity(e.plan) == identity(plan) and e.timed), None)
            beside = at.best()
            if found is not None and beside is not None:
                points.append((work, at.latency_us(found, beside)))
        return ShapeFit.of(points)

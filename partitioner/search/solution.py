"""What a search returns: the best plans, and what is proven of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from collage.partitioner.candidate import Plan

Method = Literal["line", "program", "fallback"]


@dataclass(frozen=True)
class ScoredPlan:
    """A plan with what it costs.

    Args:
        plan: its partitions, in execution order.
        candidates: their positions in the candidates given to search, in the same order.
        objective_us: partitions and borders together, in microseconds.
    """

    plan: Plan
    candidates: tuple[int, ...]
    objective_us: float


@dataclass(frozen=True)
class Statistics:
    """How a search went.

    Args:
        method: `line` (shortest ways were proven best), `program` (HiGHS), `fallback` (out of time, the
            plan found beforehand).
        candidates: that constraints and costs left.
        columns: of the largest program solved; 0 when none was.
        rows: likewise.
        cuts: rows that forbid rings of waiting partitions.
        solves: how many programs were solved.
        seconds: in all.
    """

    method: Method
    candidates: int
    columns: int
    rows: int
    cuts: int
    solves: int
    seconds: float


@dataclass(frozen=True)
class Solution:
    """The best plans, the best first; at least one.

    Args:
        plans: distinct ones.
        bound_us: no plan costs less.
        optimal: True when the first plan is proven to be the best.
        complete: True when there are proven to be no better plans than those given (or none other).
        statistics: how it was found.
    """

    plans: tuple[ScoredPlan, ...]
    bound_us: float
    optimal: bool
    complete: bool
    statistics: Statistics

    @property
    def gap(self) -> float:
        """How much of the best plan's cost is not proven to be needed; 0 when it is optimal."""
        cost = self.plans[0].objective_us
        if self.optimal or cost <= self.bound_us:
            return 0.0
        return (cost - self.bound_us) / cost if math.isfinite(self.bound_us) else 1.0

    def with_bound(self, bound_us: float) -> Solution:
        """The same plans with another bound (of a search with more candidates, for example)."""
        best = self.plans[0].objective_us
        return replace(self, bound_us=bound_us, optimal=bound_us >= best - tolerance_us(best))


def tolerance_us(cost_us: float) -> float:
    """Differences below this are rounding."""
    return 1e-6 * max(1.0, abs(cost_us))

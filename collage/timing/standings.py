"""Which plan wins, and what partitions and borders took, by all comparisons so far.

Terms: the *baseline* takes part in every comparison, so that results of different minutes compare. A plan's
*ratio* is its time over the baseline's in the same round. The *residual* of a partition is what it took inside a
running plan.

Which plan wins is stated in `collage.timing.decision`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from collage.partitioner.candidate import Plan
from collage.partitioner.errors import NoPlanError
from collage.partitioner.target import Target
from collage.timing.decision import choose
from collage.timing.estimates import Estimates
from collage.timing.request import NO_TIME
from collage.timing.timed_plan import TimedPlan, identity


@dataclass(frozen=True)
class Standings:
    """The plans that were timed, and which of them may be returned.

    Args:
        entries: every plan that was timed or failed, the baseline first.
        tolerance: a plan with a larger error is never returned; None for no bound.
        eligible: whether a plan keeps what the caller asked for.
    """

    entries: tuple[TimedPlan, ...] = ()
    tolerance: float | None = None
    eligible: Callable[[Plan], bool] = lambda plan: True

    @property
    def baseline(self) -> TimedPlan:
        """The plan that all ratios are taken to."""
        return self.entries[0]

    @cached_property
    def estimates(self) -> Estimates:
        """How fast each plan is, by all comparisons."""
        return Estimates(self.entries)

    def ratio(self, entry: TimedPlan) -> float:
        """The estimate of a timed plan's latency over the baseline's."""
        return self.estimates.ratio(entry)

    def find(self, plan: Plan) -> list[TimedPlan]:
        """The entries of this very plan, whatever proposed them."""
        return [entry for entry in self.entries if identity(entry.plan) == identity(plan)]

    def knows(self, plan: Plan) -> bool:
        """True when this very plan took part in a comparison, and there was time for it."""
        return any(entry.failure != NO_TIME for entry in self.find(plan))

    def may_win(self, entry: TimedPlan) -> bool:
        """True when a timed plan keeps the tolerance and what the caller asked for."""
        limit = self.tolerance
        exact_enough = limit is None or entry.error is None or entry.error <= limit
        return entry.timed and exact_enough and self.eligible(entry.plan)

    def winner(self) -> TimedPlan:
        """The plan to return, see `collage.timing.decision`.

        Raises:
            NoPlanError: no plan could be run; the message gives each one's failure.
        """
        timed = [entry for entry in self.entries if self.may_win(entry)]
        if not timed:
            failures = "; ".join(f"{entry.name}: {entry.failure}" for entry in self.entries)
            raise NoPlanError(f"no plan could be run end to end ({failures})")
        return choose(timed, self.estimates)

    def best_beside(self, winner: TimedPlan, singles: Sequence[TimedPlan]) -> TimedPlan | None:
        """The single target that a returned plan is compared with, None of none: what the rule chooses of them.

        Where the rule itself returned the plan, no single target that it passed over as not proven: to return that one
        would have been to return a guess.
        """
        if not singles:
            return None
        best = choose(singles, self.estimates)
        if not self.may_win(winner) or self.winner() is not winner:
            return best
        limit = self.ratio(winner)
        rest = [e for e in singles if self.ratio(e) >= limit or not self.may_win(e)]
        return choose(rest, self.estimates) if rest else None

    def leaders(self) -> list[TimedPlan]:
        """The winner so far, where there is one."""
        return [self.winner()] if any(map(self.may_win, self.entries)) else []

    def fastest(self) -> TimedPlan | None:
        """The plan that looks fastest so far, whether that is proven or not; None of none."""
        fit = [entry for entry in self.entries if self.may_win(entry)]
        return min(fit, key=self.ratio, default=None)


def residuals(entries: Sequence[TimedPlan]) -> dict[tuple[int, Target], float]:
    """Time of each partition inside the plans that ran, in microseconds; the median over plans.

    Args:
        entries: the baseline first, at whose pace all times are told.
    """
    seen: dict[tuple[int, Target], list[float]] = {}
    for entry in entries:
        if entry.timed:
            whole_us = entry.ratio * entries[0].latency_us
            steps_us = entry.step_us if len(entry.plan.partitions) > 1 else (entry.latency_us,)
            for partition, step_us in zip(entry.plan.partitions, steps_us, strict=True):
                us = step_us * whole_us / entry.latency_us
                seen.setdefault((partition.nodes, partition.target), []).append(us)
    return {key: statistics.median(times) for key, times in seen.items()}


def pace(singles: Sequence[TimedPlan], baseline: TimedPlan) -> float:
    """What single targets take in comparisons over what they took when each was measured at its own moment."""
    times = [
        e.ratio * baseline.latency_us / e.predicted_us for e in singles if e.timed and e.predicted_us
    ]
    return statistics.median(times) if times else 1.0


def border_surplus_us(mixed: Sequence[TimedPlan], known_us: float) -> float:
    """What each border of mixed plans took beyond the prediction; the lower median.

    It is never negative: a plan that ran faster than predicted says nothing about borders.

    Args:
        mixed: the plans.
        known_us: what the baseline took at the pace of the predictions.
    """
    surplus = [
        (entry.ratio * known_us - entry.predicted_us) / (len(entry.plan.partitions) - 1)
        for entry in mixed
        if entry.timed and entry.predicted_us is not None and len(entry.plan.partitions) > 1
    ]
    return max(0.0, statistics.median_low(surplus)) if surplus else 0.0

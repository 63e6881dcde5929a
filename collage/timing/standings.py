"""Which plan wins, and what partitions and borders took, by all comparisons so far.

Terms: the *baseline* takes part in every comparison, so that results of different minutes compare. A plan's
*ratio* is its time over the baseline's in the same round. The *residual* of a partition is what it took inside a
running plan.

Invariant: a plan with more partitions, or with a mix inside one, wins only if it is clearly faster than the best simpler
plan: by the whole confidence interval of their ratio.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collage.backends.registry import backend_of
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.errors import NoPlanError
from collage.partitioner.target import Target
from collage.timing.request import HOPELESS_RATIO, NO_TIME
from collage.timing.timed_plan import TimedPlan, clearly_faster, identity, shared_comparisons


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
        """The fastest timed plan; where noise cannot tell, the simpler one (`complexity`).

        Raises:
            NoPlanError: no plan could be run; the message gives each one's failure.
        """
        timed = [entry for entry in self.entries if self.may_win(entry) and entry.beats_its_origin]
        if not timed:
            failures = "; ".join(f"{entry.name}: {entry.failure}" for entry in self.entries)
            raise NoPlanError(f"no plan could be run end to end ({failures})")
        return simplest_of_the_fastest(timed)

    def leaders(self) -> list[TimedPlan]:
        """The winner so far, where there is one."""
        return [self.winner()] if any(map(self.may_win, self.entries)) else []

    def fastest(self) -> TimedPlan | None:
        """The plan that looks fastest so far, whether that is proven or not; None of none."""
        fit = [entry for entry in self.entries if self.may_win(entry)]
        return min(fit, key=lambda entry: entry.ratio, default=None)


def simplest_of_the_fastest(timed: Sequence[TimedPlan]) -> TimedPlan:
    """The fastest of timed plans; where noise cannot tell, the simpler one (`complexity`)."""
    fastest = min(timed, key=lambda entry: entry.ratio)
    # Those that were dropped early have few samples, in which one disturbed round hides how slow they are. Of those
    # that met it in several builds the interval says it.
    near = [
        e
        for e in timed
        if e.ratio <= fastest.ratio * HOPELESS_RATIO or len(shared_comparisons(e, fastest)) > 1
    ]
    simpler = [e for e in near if complexity(e.plan) < complexity(fastest.plan)]
    beaten: list[TimedPlan] = []
    for entry in sorted(simpler, key=lambda e: (*complexity(e.plan), e.ratio)):
        # A plan that is slower than a clearly beaten one is beaten too, however much noise is on it.
        if beaten and entry.ratio >= beaten[-1].ratio:
            continue
        if clearly_faster(fastest, entry):
            beaten.append(entry)
        elif all(
            clearly_faster(entry, e) for e in beaten if complexity(e.plan) < complexity(entry.plan)
        ):
            return entry
        # Else it ties with the fastest and with what that beats: it has proven nothing.
    return fastest


def complexity(plan: Plan) -> tuple[int, int]:
    """Decides ties: how many partitions, and how many of them are mixed inside or rewritten."""
    return len(plan.partitions), sum(map(_is_special, plan.partitions))


def _is_special(partition: Candidate) -> bool:
    backend = backend_of(partition.target)
    _, others = backend.unmix(partition.target, partition.nodes)
    return bool(others) or backend.rewriting(partition.target) is not None


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

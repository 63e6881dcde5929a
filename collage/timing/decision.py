"""The rule by which a plan is chosen; docs/decision-rule.md states it.

1. A plan counts by its estimate from all comparisons (`collage.timing.estimates`).
2. A plan is left out where another one, no more complex and with a better estimate, was faster in every comparison that
   it took part in, and in two at least.
3. Among plans of equal complexity the best estimate wins, proven or not.
4. A more complex plan takes its place only if it is proven to be faster.

So noise on a plan never helps it: on a complex plan it makes the proof harder, and on a simple one it makes the proof
against it no harder.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, takewhile

from collage.backends.registry import backend_of
from collage.partitioner.candidate import Candidate, Plan
from collage.timing.estimates import Estimates
from collage.timing.timed_plan import TimedPlan, identity, speedup, wins

# Faster in every one of so many comparisons is a proof: by chance that happens in one of 32.
_ALWAYS_FASTER = 5
# So many standard errors are a proof; Student's 97.5 % quantile of about ten comparisons.
_ERRORS = 2.2
_ROUNDING = 1e-9
# One comparison may be a lucky one of the other plan.
_OFTEN = 2


def choose(entries: Sequence[TimedPlan], estimates: Estimates) -> TimedPlan:
    """The plan to return.

    Args:
        entries: plans that were timed and may be returned.
        estimates: of all plans that were timed.

    Raises:
        ValueError: there are no plans.
    """
    if not entries:
        raise ValueError("there are no plans to choose from")

    def order(entry: TimedPlan) -> tuple[float, str]:
        lanes, partitions = identity(entry.plan)
        return round(estimates.ratio(entry), 9), f"{lanes} {sorted(map(repr, partitions))}"

    fastest_first = sorted(entries, key=order)
    best: TimedPlan | None = None
    # Sorting keeps the order of equals.
    for _, equal in groupby(sorted(fastest_first, key=_complexity), key=_complexity):
        fastest = next((e for e in equal if not _is_beaten(e, fastest_first)), None)
        if fastest is not None and (best is None or proven(fastest, best, estimates)):
            best = fastest
    assert best is not None  # of the simplest plans, nothing beats the one with the best estimate
    return best


def proven(fast: TimedPlan, slow: TimedPlan, estimates: Estimates) -> bool:
    """True when a more complex plan is proven to be faster than a simpler one.

    It must be faster by its estimate. The proof is one of: the confidence interval of their ratio where they ran side
    by side, the estimate by `_ERRORS` standard errors, or the lead in every one of enough comparisons.
    """
    lead = estimates.between(slow, fast).ratio
    if lead <= 1.0 + _ROUNDING:
        return False
    won, met = wins(fast, slow)
    by_estimate = lead > 1.0 + _ERRORS * estimates.margin(fast, slow)
    side_by_side = speedup(slow, fast).low > 1.0 + _ROUNDING
    return side_by_side or by_estimate or won == met >= _ALWAYS_FASTER


def complexity(plan: Plan) -> tuple[int, int]:
    """How many partitions, and how many of them are mixed inside or rewritten."""
    return len(plan.partitions), sum(map(_is_special, plan.partitions))


def _complexity(entry: TimedPlan) -> tuple[int, int, bool]:
    """A small change of another plan counts as more complex than that: one of many that were tried."""
    return *complexity(entry.plan), entry.challenges is not None


def _is_special(partition: Candidate) -> bool:
    backend = backend_of(partition.target)
    _, others = backend.unmix(partition.target, partition.nodes)
    return bool(others) or backend.rewriting(partition.target) is not None


def _is_beaten(entry: TimedPlan, fastest_first: Sequence[TimedPlan]) -> bool:
    """Whether a plan with a better estimate, no more complex, was faster in every comparison that an entry took part in.

    Without the estimates, three plans could each be beaten by the next one, in a circle.
    """
    judging, own = set(entry.judging), _complexity(entry)
    for other in takewhile(lambda one: one is not entry, fastest_first):
        if judging <= set(other.timings) and _complexity(other) <= own:
            won, met = wins(other, entry)
            if won == met >= _OFTEN:
                return True
    return False

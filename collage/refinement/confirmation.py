"""Times a winner again in fresh processes, since a build can be lucky.

The single targets that are nearly as fast run beside it, and so do plans that look faster and are not proven to be.
"""

from __future__ import annotations

from collections.abc import Sequence

from collage.refinement.comparisons import Comparisons
from collage.refinement.local_search import PROMISING
from collage.search.fixed_plans import joined, sensible
from collage.timing.decision import complexity
from collage.timing.standings import Standings
from collage.timing.timed_plan import TimedPlan, distinct, shared_comparisons, speedup

# A winner is timed in so many processes beside the single targets that are nearly the best, or in two where it is
# far ahead: builds of the same plans differ, and a busy machine shifts ratios for minutes (docs/results/comparing-plans.md).
BUILDS, _FAR_AHEAD, _NEARLY_THE_BEST = 4, 1.5, 1.05
# So many comparisons may confirm one winner.
_MAX_CONFIRMATIONS = 8
# So many plans that look faster than the winner, and are not proven to be, are timed beside it, in so many times
# as many processes: the interval of a small gain needs that many (docs/results/comparing-plans.md).
_MOST_UNPROVEN, _UNPROVEN_BUILDS = 2, 2.5
# Single targets are, in so many times as many processes, where one may be faster than the winner by more than so much.
_MORE_BUILDS, _REGRET = 1.5, 0.01


def confirm(
    comparisons: Comparisons,
    winner: TimedPlan,
    builds: int = BUILDS,
) -> TimedPlan:
    """Time a winner again, and the plans that may win instead, until each ran in enough processes.

    Args:
        comparisons: of the run.
        winner: the plan.
        builds: in how many processes.

    Returns:
        The plan that wins then.
    """
    standings = comparisons.standings
    singles = [entry for entry in comparisons.singles if standings.may_win(entry)]
    best = min(map(standings.ratio, singles), default=1.0)
    rivals = [e for e in singles if _least(comparisons, e) <= _NEARLY_THE_BEST * best]
    rivals += _joined(comparisons, winner)
    # Chosen once: of many plans that are nearly alike another one is ahead after each comparison.
    hopeful = [winner, *_hopeful(comparisons.standings, winner)]
    for _ in range(_MAX_CONFIRMATIONS):
        others = [entry for entry in rivals if entry is not winner]
        unproven = [
            entry
            for entry in hopeful
            if _looks_faster(comparisons.standings, entry, winner)
            and len(shared_comparisons(entry, winner)) < _UNPROVEN_BUILDS * builds
        ]
        if not unproven and not _in_doubt(winner, others, builds):
            break
        origins = [e.challenges for e in (winner, *unproven) if e.challenges is not None]
        again = distinct([*others, *origins, winner, *unproven])
        if not comparisons.fits_confirming(len(again)):
            comparisons.timer.skip("further confirmation of the winner")
            break
        winner = comparisons.time([], again=again).winner()
    return winner


def _least(comparisons: Comparisons, single: TimedPlan) -> float:
    """What a single target's ratio may be: in one piece it is no slower than in blocks, unless its minute was bad."""
    blocks = comparisons.in_blocks.get(single.plan.partitions[0].target)
    ratio = comparisons.standings.ratio
    return min(map(ratio, [single, blocks] if blocks is not None and blocks.timed else [single]))


def _joined(comparisons: Comparisons, winner: TimedPlan) -> list[TimedPlan]:
    """The same plan with a border less, where two partitions of one target feed each other; it is timed beside it."""
    index = comparisons.model.index
    plan = winner.plan if winner.plan.lanes > 1 else joined(index, winner.plan)
    found = comparisons.standings.find(plan)
    affordable = comparisons.fits_confirming(3)
    if not found and affordable and comparisons.allows(plan) and sensible(index, plan):
        found = [TimedPlan(plan, f"{winner.name}, joined")]
        comparisons.time(found, again=[winner])
    standings = comparisons.standings
    return [entry for entry in found if entry is not winner and standings.may_win(entry)]


def _hopeful(standings: Standings, winner: TimedPlan) -> list[TimedPlan]:
    """The plans that look faster than the winner, and by most."""
    found = [entry for entry in standings.entries if _looks_faster(standings, entry, winner)]
    return sorted(found, key=standings.ratio)[:_MOST_UNPROVEN]


def _looks_faster(standings: Standings, entry: TimedPlan, winner: TimedPlan) -> bool:
    return standings.may_win(entry) and standings.ratio(entry) * PROMISING < standings.ratio(winner)


def _in_doubt(winner: TimedPlan, rivals: Sequence[TimedPlan], enough: int) -> bool:
    """Whether a plan was timed in too few processes to say that no single target is faster."""
    if not rivals:
        return complexity(winner.plan) > (1, 0) and len(winner.timings) < 2
    builds = min(len(shared_comparisons(winner, rival)) for rival in rivals)
    leads = [speedup(rival, winner).low for rival in rivals]
    if builds < enough:
        return builds < 2 or min(leads) <= _FAR_AHEAD
    # Of single targets that are nearly alike, another one may be ahead after each comparison.
    return builds < _MORE_BUILDS * enough and min(leads) < 1 - _REGRET

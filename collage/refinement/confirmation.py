"""Times a winner again in fresh processes, since a build can be lucky.

The single targets that are nearly as fast run beside it, and so do plans that look faster and are not proven to be.
Where other processes disturbed all rounds of a whole model, or the cores were far apart in all of them, it runs again
even if it looked much slower.
"""

from __future__ import annotations

import math
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
# Where noise is wide, a single target is nearly the best if it is behind by less than so many standard errors. After one
# quiet comparison that is about the same share.
_ERRORS = 1.6
# What only ran while others disturbed it may be the best, if it is not so many times as slow. Of variants so many run again.
DISTURBED_BEHIND, _MOST_VARIANTS = 2.0, 2
# So many comparisons may confirm one winner.
_MAX_CONFIRMATIONS = 8
# So many plans that look faster than the winner, and are not proven to be, are timed beside it, in so many times
# as many processes: the interval of a small gain needs that many (docs/results/comparing-plans.md).
_MOST_UNPROVEN, _UNPROVEN_BUILDS = 2, 2.5
# Single targets are, in so many times as many processes, where one may be faster than the winner by more than so much.
_MORE_BUILDS, _REGRET = 1.5, 0.01
_SKIPPED = "further confirmation of the winner"


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
    best = min(map(comparisons.standings.ratio, _singles(comparisons)), default=1.0)
    near = [e for e in _singles(comparisons) if _least(comparisons, e) <= _NEARLY_THE_BEST * best]
    near += _joined(comparisons, winner)
    # Chosen once: of many plans that are nearly alike another one is ahead after each comparison.
    hopeful = [winner, *_hopeful(comparisons.standings, winner)]
    for _ in range(_MAX_CONFIRMATIONS):
        unproven = [
            entry
            for entry in hopeful
            if _looks_faster(comparisons.standings, entry, winner)
            and len(shared_comparisons(entry, winner)) < _UNPROVEN_BUILDS * builds
        ]
        rivals = [entry for entry in near if entry is not winner]
        unsure = [e for e in _unsure(comparisons) if e is not winner and e not in near]
        origins = [e.challenges for e in (winner, *unproven) if e.challenges is not None]
        must = distinct([*rivals, *origins, winner, *unproven])
        # Where time is short, the nearest of those that are far behind are looked at.
        fitting = [n for n in range(len(unsure) + 1) if comparisons.fits_confirming(len(must) + n)]
        looked_at = unsure[: max(fitting, default=0)]
        if not unproven and not _in_doubt(winner, [*rivals, *looked_at], builds):
            if len(looked_at) < len(unsure):
                comparisons.timer.skip(_SKIPPED)
            break
        if not fitting:
            comparisons.timer.skip(_SKIPPED)
            break
        winner = comparisons.time([], again=distinct([*looked_at, *must])).winner()
    return comparisons.standings.winner()


def _singles(comparisons: Comparisons) -> list[TimedPlan]:
    return [entry for entry in comparisons.singles if comparisons.standings.may_win(entry)]


def _unsure(comparisons: Comparisons) -> list[TimedPlan]:
    """Whole models that may be the best by what is known of their noise, the nearest first."""
    standings = comparisons.standings
    singles = sorted(_singles(comparisons), key=standings.ratio)
    if not singles:
        return []
    best = singles[0]

    def behind(entry: TimedPlan) -> float:
        return standings.ratio(entry) / standings.ratio(best)

    def may_be_best(entry: TimedPlan) -> bool:
        if entry.ran_in_quiet:
            return math.log(behind(entry)) < _ERRORS * standings.estimates.margin(entry, best)
        # The next one is looked at however far behind it is.
        return behind(entry) < DISTURBED_BEHIND or entry in singles[1:2]

    variants = [
        entry
        for entry in standings.entries
        if len(entry.plan.partitions) == 1
        and not (entry in singles or entry.proposed or entry.ran_in_quiet)
        and standings.may_win(entry)
        and behind(entry) < DISTURBED_BEHIND
    ]
    found = [entry for entry in singles if may_be_best(entry)]
    found += sorted(variants, key=standings.ratio)[:_MOST_VARIANTS]
    return sorted(found, key=standings.ratio)


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

"""When a search cannot pay: one single target is far ahead, and nothing promises a gain.

Within an accuracy budget that target keeps it, and nothing promises a gain even where mixes may err by anything.

Invariant: only the optimistic estimates that the search itself would start from decide. What they do not promise, the
search would not measure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from collage.accuracy.budget_search import BudgetSearch
from collage.accuracy.evaluation import session_of
from collage.accuracy.task import TaskJudge
from collage.events import Event
from collage.partitioner.target import Target
from collage.refinement.comparisons import Comparisons
from collage.refinement.confirmation import DISTURBED_BEHIND
from collage.search.corrections import Corrections
from collage.search.fixed_plans import single_plan
from collage.search.lazy_search import LazySearch
from collage.timing.request import NO_TIME
from collage.tuning.stages import Baselines, Budgeted

# The other runtimes take at least so many times as long, and no mix promises to save more than such a share.
_FAR_AHEAD, _WORTH_SEARCHING = 1.5, 0.02
# So many whole models are asked whether they keep the task, each so many times as fast as the fastest exact one.
_MOST_ASKED, _WORTH_ASKING = 3, 1.1


def early_end(known: Budgeted, comparisons: Comparisons, promised: float) -> str | None:
    """Why the search is left out, in words for the report; None where it is worth its time.

    Args:
        known: the run, with the variants that joined.
        comparisons: of the single targets and their variants in turn.
        promised: what the best target for each part would save by profiles.
    """
    if known.left_out and len(known.specs) == 1:
        return "ended early: no other target is of use, by what other models took"
    fastest = comparisons.standings.fastest()
    if fastest is None or len(fastest.plan.partitions) != 1 or not _may_settle(known, known.budget):
        return None
    # Other processes may take more from one runtime than from another.
    if not fastest.ran_in_quiet:
        return None
    if (reason := known.advice.against_search(promised)) is not None:
        return reason
    corrections = comparisons.corrected(Corrections())
    leader = fastest.plan.partitions[0].target
    if known.budget is not None and fastest.exactness > known.exact_error:
        # Only mixes could be faster, and all that is known of those are these estimates.
        promise_us = _promise_us(known, corrections)
        return reason_to_mix_nothing(leader, comparisons.at_known_pace_us(fastest), promise_us)
    whole_us = _whole_us(comparisons, known.single_targets.latencies_us())
    return reason_to_end(leader, whole_us, lambda: _promise_us(known, corrections))


def sole_leader(known: Baselines, budget: BudgetSearch) -> Target | None:
    """The target beside which mixes have nothing to gain, by what whole models took alone; None where there is none.

    Args:
        known: the run.
        budget: would try the mixes.
    """
    alone_us = known.single_targets.latencies_us()
    options = known.request.options
    if known.task is None and options.metric == "max":
        alone_us = known.single_targets.within(options.tolerance, alone_us)
    leader = min(alone_us, key=alone_us.__getitem__, default=None)
    # Where the leader computes exactly, that others are near says more than profiles do.
    if leader is None or leader in budget.chosen.exact or not _may_settle(known, budget):
        return None
    reason = reason_to_mix_nothing(leader, alone_us[leader], budget.promised_us())
    return None if reason is None else leader


def keeping_task(known: Baselines, leader: Target) -> tuple[Target | None, frozenset[Target]]:
    """The fastest target whose whole model keeps the task on the searched samples, and those that are too far off.

    The leader is asked first, and few after it. Where there is no task, the leader is the one.
    """
    if known.task is None:
        return leader, frozenset()
    alone_us = known.single_targets.latencies_us()
    exact_us = min(known.exact_us(alone_us).values(), default=math.inf)
    far: frozenset[Target] = frozenset()
    for _ in range(_MOST_ASKED):
        left = [t for t, us in alone_us.items() if t not in far and us * _WORTH_ASKING <= exact_us]
        target = leader if not far else min(left, key=alone_us.__getitem__, default=None)
        if target is None or known.out_of_time:
            break
        if _keeps_task(known, target):
            return target, far
        far |= as_far_off(target, alone_us)
    return None, far


def as_far_off(far: Target, targets: Iterable[Target]) -> frozenset[Target]:
    """The target that is too far off, and those that reduce the same and more."""
    reduced = {*far.options}
    return frozenset(t for t in targets if t.backend == far.backend and reduced <= {*t.options})


def _keeps_task(known: Baselines, leader: Target) -> bool:
    """Whether the whole model on a target keeps the task on the searched samples."""
    assert known.task is not None
    judge = TaskJudge(known.task, known.task.searched)
    with session_of(single_plan(known.model, leader), known.sub_models, known.sampling) as session:
        reason = judge.refusal(session)
    if reason is not None:
        known.run.listener(Event("accuracy", f"{leader} alone is too far off: {reason}"))
    return reason is None


def reason_to_mix_nothing(leader: Target, leader_us: float, promise_us: float) -> str | None:
    """Why no mix is worth trying beside a whole model that keeps an accuracy budget; None where one is.

    Args:
        leader: its target.
        leader_us: what it takes.
        promise_us: what the best mix would take whatever it errs, by optimistic estimates.
    """
    if promise_us < leader_us * (1 - _WORTH_SEARCHING):
        return None
    return (
        f"ended early: {leader} keeps the budget, and no mix promises to save more than {_WORTH_SEARCHING:.0%} whatever it "
        "errs"
    )


def _may_settle(known: Baselines, budget: BudgetSearch | None) -> bool:
    """Whether a whole model that keeps the budget, where there is one, can be all that is asked for.

    A front has more points, and the caller's own check may refuse it at the end.
    """
    return budget is None or not (known.request.options.pareto or known.request.check)


def _whole_us(comparisons: Comparisons, alone_us: Mapping[Target, float]) -> dict[Target, float]:
    """What the whole model takes on each target and variant, at the least.

    Args:
        comparisons: in which most of them ran.
        alone_us: what it took on each target that was measured; all that is known where it was not compiled in time.
    """
    whole_us: dict[Target, float] = {}
    for entry in comparisons.standings.entries:
        if len(entry.plan.partitions) != 1:
            continue
        target = entry.plan.partitions[0].target
        if entry.timed:
            us = comparisons.at_known_pace_us(entry)
            whole_us[target] = us if entry.ran_in_quiet else us / DISTURBED_BEHIND
        elif entry.failure == NO_TIME and target in alone_us:
            whole_us[target] = alone_us[target]
    return whole_us


def reason_to_end(
    leader: Target, whole_us: Mapping[Target, float], promise_us: Callable[[], float]
) -> str | None:
    """Why a search beside a leading target cannot pay; None where it may.

    Args:
        leader: the fastest target.
        whole_us: the whole model on each target and variant that was timed.
        promise_us: what the best mix would take, by optimistic estimates; asked only where a target is far ahead.
    """
    best_us = whole_us.get(leader)
    others = [us for target, us in whole_us.items() if target.backend != leader.backend]
    if best_us is None or not others or min(others) < _FAR_AHEAD * best_us:
        return None
    if promise_us() < best_us * (1 - _WORTH_SEARCHING):
        return None
    return (
        f"ended early: {leader} is {min(others) / best_us:.2g} times as fast as the next runtime, and no mix promises "
        f"to save more than {_WORTH_SEARCHING:.0%}"
    )


def _promise_us(known: Budgeted, corrections: Corrections) -> float:
    """What the best plan would take by optimistic estimates; infinite where there is none."""
    lazy = LazySearch(
        index=known.model.index,
        candidates=known.candidates,
        costs=known.costs,
        estimates=known.estimates,
        transitions=known.transitions,
        constraints=known.constraints,
        deadline_s=known.deadline.search_s,
        listener=lambda event: None,
    )
    promised = [plan.objective_us for plan in lazy.plans_by_estimates(corrections)]
    if known.budget is not None:  # its mixes have cheaper borders
        promised.append(known.budget.promised_us())
    return min(promised, default=float("inf"))

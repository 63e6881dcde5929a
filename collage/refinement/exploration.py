"""Whole plans that are timed before their partitions are measured: targets in blocks, and mixes of blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from collage.costs.estimates import Estimates
from collage.partitioner.candidate import Candidate, Plan, bits
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.target import Target
from collage.refinement.comparisons import Comparisons
from collage.search.blocks import layouts, own_blocks
from collage.search.corrections import Corrections
from collage.search.lazy_search import WORTH_MEASURING, LazySearch
from collage.timing.timed_plan import TimedPlan

# A target further behind as a whole is not timed in blocks. Compiling those may take this share of the time left.
_WORTH_A_LAYOUT, _LAYOUTS_SHARE = 2.0, 0.25
# Plans are explored in this share of the time left, until so many comparisons in turn brought nothing better.
_EXPLORING_SHARE, _FRUITLESS = 0.3, 2


def lay_out(
    comparisons: Comparisons,
    candidates: CandidateSet,
    estimates: Estimates,
    exact_us: Mapping[Target, float],
) -> tuple[Comparisons, list[Candidate]]:
    """Time what each target takes in blocks, in turn: that says where each is quick, all at one pace.

    Args:
        comparisons: of the run.
        candidates: of all targets.
        estimates: of what nodes take.
        exact_us: microseconds of the whole model on the targets that are exact enough to be used.

    Returns:
        The comparisons with the plans in blocks, and the blocks of all targets, also those that were not timed.
    """
    index = comparisons.model.index
    shares_us = estimates.shares_us()
    plans = layouts(index, candidates.candidates, estimates)
    least_us = min(exact_us.values(), default=0.0) * comparisons.lead(exact_us)
    near = [t for t, us in exact_us.items() if us <= _WORTH_A_LAYOUT * least_us and t in plans]
    # How a target compares that refuses a node or two, nothing else would say.
    whole = {c.target for c in candidates.candidates if c.nodes == index.all_nodes}
    near += [t for t, plan in plans.items() if t not in whole and _takes_most(t, plan, shares_us)]
    in_blocks = {target: TimedPlan(plans[target], f"{target} in blocks") for target in near}
    entries = comparisons.new(list(in_blocks.values()))
    if len(entries) > 1 and comparisons.standings.leaders():
        if comparisons.fits(len(entries) + 1):
            comparisons.time(entries, share_of_time=_LAYOUTS_SHARE)
        else:
            comparisons.timer.skip("targets in blocks")
    blocks = [block for target, plan in plans.items() for block in own_blocks(plan, target)]
    return replace(comparisons, in_blocks=in_blocks), blocks


def _takes_most(target: Target, plan: Plan, shares_us: Sequence[float]) -> bool:
    """Whether at least half of the time goes by in a target's own blocks."""
    own = sum(shares_us[node] for block in own_blocks(plan, target) for node in bits(block.nodes))
    return own >= sum(shares_us) / 2


def explore(comparisons: Comparisons, lazy: LazySearch, corrections: Corrections) -> Corrections:
    """Time plans whose partitions were not measured, until that brings nothing better.

    First come plans of the blocks that ran in turn, then plans by profiles, corrected by all that ran. A comparison
    says what each partition takes at one pace and beside its neighbors, which no measurement of it alone does.

    Args:
        comparisons: of the run.
        lazy: proposes the plans.
        corrections: what is known of costs by now.

    Returns:
        What is known of costs after it.
    """
    deadline = comparisons.deadline
    end_s = deadline.clock() + _EXPLORING_SHARE * max(0.0, deadline.left_s)
    propose, count, idle = lazy.plans_of_blocks, 0, 0
    while (best := comparisons.standings.fastest()) and idle < _FRUITLESS and deadline.clock() < end_s:
        limit_us = comparisons.at_known_pace_us(best) * (1 - WORTH_MEASURING)
        plans = [s.plan for s in propose(corrections) if s.objective_us < limit_us]
        unknown = comparisons.new([TimedPlan(plan, "explored", proposed=True) for plan in plans])
        new = [replace(e, name=f"explored {count + i}") for i, e in enumerate(unknown, 1)]
        count += len(new)
        if new and not comparisons.fits(len(new) + 2):
            comparisons.timer.skip("mixes whose parts were not measured")
            break
        if new:
            comparisons.time(new, again=[best], share_of_time=_LAYOUTS_SHARE)
            corrections = comparisons.corrected(corrections)
        idle = 0 if comparisons.standings.fastest() is not best else idle + 1
        propose = lazy.plans_by_estimates
    return corrections

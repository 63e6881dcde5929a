"""Blocks: a graph laid out in a few candidates, none of them long, that one target each may well own.

A whole model's time alone does not say where a runtime is quick, and a profile may have been taken at a
slow moment. So blocks, out of the candidates that there are anyway, are measured: all of a target's as one
plan, in turn with those of other targets, or each like any other region.

Mixes are made of blocks first, so their borders stand where profiles say that another target becomes the best, and
not where runtimes fuse: between an operator and what is done with each of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import numpy as np

from collage.costs.estimates import Estimates
from collage.partitioner.candidate import Candidate, Plan, bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.op_kind import OpKind, kind_of
from collage.partitioner.search.milp import Floats, Ints
from collage.partitioner.search.search import Searcher
from collage.partitioner.target import Target

# A block measured alone takes at most about such a share of the model, and one that runs in a plan, where it costs
# less time, such a one.
_ALONE, _IN_TURN = 1 / 5, 1 / 12
# Prices of the layout, where such a share is 1000: of each block, of each fused operator that is cut apart, and of leaving a
# node to another target.
_SHARE_US, _BLOCK_US, _CUT_APART_US, _OTHER_US = 1e3, 250.0, 250.0, 1e5


def layouts(
    index: GraphIndex, candidates: Sequence[Candidate], estimates: Estimates
) -> dict[Target, Plan]:
    """What each target takes in blocks, as a plan; see `layout`."""
    targets = dict.fromkeys(candidate.target for candidate in candidates)
    price_us = _pricing(index, targets, estimates, _IN_TURN)
    found = {target: layout(index, candidates, target, price_us) for target in targets}
    return {target: plan for target, plan in found.items() if plan is not None}


def blocks(
    index: GraphIndex, candidates: Sequence[Candidate], target: Target, estimates: Estimates
) -> list[Candidate]:
    """A few of a target's own regions that make up what it takes, to be measured alone."""
    targets = dict.fromkeys(candidate.target for candidate in candidates)
    plan = layout(index, candidates, target, _pricing(index, targets, estimates, _ALONE))
    return own_blocks(plan, target) if plan is not None else []


def own_blocks(plan: Plan, target: Target) -> list[Candidate]:
    """The partitions of a plan that are the target's."""
    return [c for c in plan.partitions if c.target == target]


def unions(
    index: GraphIndex,
    candidates: Sequence[Candidate],
    blocks: Sequence[Candidate],
    taken_us: Mapping[tuple[int, Target], float],
) -> dict[Candidate, float]:
    """What regions take that are made up of blocks, by what those and whole models took in turn.

    A target's blocks as one region are its whole model, which takes less or more than they add up to: borders are
    saved, and other things fused. A region of some of them has its share of that, by how many were joined.

    Args:
        index: the graph.
        candidates: the regions looked at.
        blocks: disjoint regions of each target.
        taken_us: what was timed in turn.

    Returns:
        Microseconds of each candidate that is such a region.
    """
    own: dict[Target, dict[int, float]] = {}
    for block in blocks:
        us = taken_us.get((block.nodes, block.target))
        if us is not None:
            own.setdefault(block.target, {})[block.nodes] = us
    found = {}
    for candidate in candidates:
        times = own.get(candidate.target, {})
        inside = [nodes for nodes in times if nodes & ~candidate.nodes == 0]
        if inside and sum(inside) == candidate.nodes:  # they are disjoint
            joined = (len(inside) - 1) / max(len(times) - 1, 1)
            whole_us = taken_us.get((index.all_nodes, candidate.target))
            complete = whole_us is not None and sum(times) == index.all_nodes
            gain = 1.0 - whole_us / sum(times.values()) if complete and whole_us else 0.0
            found[candidate] = sum(times[nodes] for nodes in inside) * (1.0 - joined * gain)
    return found


def layout(
    index: GraphIndex,
    candidates: Sequence[Candidate],
    target: Target,
    price_us: Callable[[int], float],
) -> Plan | None:
    """All that a target takes, in blocks.

    Args:
        index: the graph.
        candidates: of all targets; together they cover the graph.
        target: whose blocks; what it does not take is left to others.
        price_us: of a block, by its nodes.

    Returns:
        The plan, the whole graph never among its partitions; None for a graph that is offered only as a whole.
    """
    parts = [c for c in candidates if c.nodes != index.all_nodes]
    covered = 0
    for candidate in parts:
        covered |= candidate.nodes
    if covered != index.all_nodes:
        return None
    prices = [
        price_us(c.nodes) if c.target == target else _OTHER_US * c.nodes.bit_count() for c in parts
    ]
    return Searcher(index, parts).solve(prices).plans[0].plan


def _pricing(
    index: GraphIndex, targets: Iterable[Target], estimates: Estimates, most: float
) -> Callable[[int], float]:
    """The price of a block in a layout, by its nodes, whichever target runs it.

    Args:
        index: the graph.
        targets: all that there are.
        estimates: what nodes take on each target.
        most: about what share of the model's time a block takes at the most.
    """
    least_us = np.array(estimates.shares_us())
    known = [estimates.times_us(target) for target in targets]
    profiles_us = [
        np.array([times[i] for i in range(len(least_us))]) for times in known if times is not None
    ]
    share_us = most * least_us.sum()
    # What only works on each result of operators before it is fused with them.
    fused = [
        (1 << i, before)
        for i, (node, before) in enumerate(zip(index.nodes, index.predecessors, strict=True))
        if before and kind_of(node.domain, node.op_type) <= OpKind.BROADCAST
    ]

    @cache
    def price_us(nodes: int) -> float:
        members: Ints = np.array(bits(nodes))
        off_us = max(float(least_us[members].sum()) - share_us, 0.0)
        off_us += _lost_us(members, profiles_us, least_us) + estimates.moving_us(nodes)
        cut_apart = sum(1 for node, before in fused if node & nodes and not before & nodes)
        return float(_BLOCK_US + _CUT_APART_US * cut_apart + _SHARE_US * off_us / share_us)

    return price_us


def _lost_us(nodes: Ints, profiles_us: Sequence[Floats], least_us: Floats) -> float:
    """What some nodes take on the one target that is the best for all of them, above each on its own best."""
    together_us = min((float(times[nodes].sum()) for times in profiles_us), default=0.0)
    return max(together_us - float(least_us[nodes].sum()), 0.0)


def cheapest_cover(nodes: int, parts: Mapping[int, float]) -> float:
    """What disjoint parts that make up a region take together; infinite where there are none."""
    if not nodes:
        return 0.0
    first = nodes & -nodes
    fitting = [part for part in parts if part & first and part & ~nodes == 0]
    return min((parts[p] + cheapest_cover(nodes & ~p, parts) for p in fitting), default=float("inf"))

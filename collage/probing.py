"""Blocks: a graph laid out in a few candidates of about equal expected time.

A whole model's time alone does not say where a runtime is quick, and a profile may have been taken at a
slow moment. So blocks, out of the candidates that there are anyway, are measured: all of a target's as one
plan, in turn with those of other targets, or each like any other region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partitioner.candidate import Candidate, Plan, bits
from partitioner.graph_index import GraphIndex
from partitioner.search import Searcher
from partitioner.target import Target

# So many blocks of a target are measured alone, and so many run as one plan, where each costs less time.
_ALONE, _IN_TURN = 5, 8
# Prices of the layout: being off by a whole block, and leaving a node to another target.
_OFF_US = 1000.0
_OTHER_US = 1e5


def layouts(
    index: GraphIndex, candidates: Sequence[Candidate], shares: Sequence[float]
) -> dict[Target, Plan]:
    """What each target takes in blocks, as a plan; see `layout`."""
    targets = dict.fromkeys(candidate.target for candidate in candidates)
    found = {target: layout(index, candidates, target, shares, _IN_TURN) for target in targets}
    return {target: plan for target, plan in found.items() if plan is not None}


def blocks(
    index: GraphIndex, candidates: Sequence[Candidate], target: Target, shares: Sequence[float]
) -> list[Candidate]:
    """A few of a target's own regions that make up what it takes, to be measured alone."""
    plan = layout(index, candidates, target, shares, _ALONE)
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
    shares: Sequence[float],
    count: int,
) -> Plan | None:
    """All that a target takes, in blocks, each about as long as the others.

    Args:
        index: the graph.
        candidates: of all targets; together they cover the graph.
        target: whose blocks; what it does not take is left to others.
        shares: per node its expected share of the time, in any unit.
        count: about how many blocks are wanted.

    Returns:
        The plan, the whole graph never among its partitions; None for a graph that is offered only as a whole.
    """
    parts = [c for c in candidates if c.nodes != index.all_nodes]
    wanted = sum(shares) / count

    def price_us(candidate: Candidate) -> float:
        if candidate.target != target:
            return _OTHER_US * candidate.nodes.bit_count()
        share = sum(shares[i] for i in bits(candidate.nodes))
        return 1.0 + _OFF_US * (share / wanted - 1.0) ** 2

    covered = 0
    for candidate in parts:
        covered |= candidate.nodes
    if covered != index.all_nodes:
        return None
    return Searcher(index, parts).solve([price_us(c) for c in parts]).plans[0].plan

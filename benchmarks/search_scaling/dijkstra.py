"""The search of RFC 0062, as a baseline: Dijkstra over sets of covered nodes, after pruning.

A state is a set of covered nodes. From a state, every candidate is followed that covers the first
uncovered node and overlaps no covered one. Before that, candidates are *pruned*: each target keeps only
its maximal ones. While those overlap, the maximal ones without the overlapping ones stay.

It differs from `collage.partitioner.search.search` on purpose, as in the RFC. The search ignores the
cost of borders. Pruning may lose the best plan, a small candidate inside a larger one of its target.
Nothing forbids partitions that wait for each other. The number of states can grow exponentially with
the width of the graph. A candidate without a cost is never used.

Source: TVM v0.18 `src/relay/collage/collage_partitioner.cc`, `prune_candidates.cc`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from collage.partitioner.candidate import Candidate, bits
from collage.partitioner.errors import NoPlanError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.plan_check import PlanError, execution_order
from collage.partitioner.search.transition import Transitions
from collage.partitioner.target import Target

_FREE_BORDERS = Transitions()


@dataclass(frozen=True)
class DijkstraResult:
    """What it found.

    Args:
        candidates: positions of the partitions; empty when the states ran out of bounds.
        objective_us: with what borders cost; None when the partitions wait for each other.
        kept: how many candidates pruning left.
        states: how many were visited.
    """

    candidates: tuple[int, ...]
    objective_us: float | None
    kept: int
    states: int


def dijkstra(
    index: GraphIndex,
    candidates: Sequence[Candidate],
    cost_us: Sequence[float | None],
    *,
    transitions: Transitions = _FREE_BORDERS,
    prune: bool = True,
    max_states: int = 200_000,
) -> DijkstraResult:
    """Search as RFC 0062 does.

    Args:
        index: the graph.
        candidates: as for `collage.partitioner.search.search.search`.
        cost_us: per candidate; None where it cannot be used.
        transitions: calls are counted while searching, the rest only afterward.
        prune: False to keep all candidates.
        max_states: give up after visiting so many.

    Raises:
        NoPlanError: no way reaches the end, which pruning alone may be the cause of.
    """
    usable = [i for i, cost in enumerate(cost_us) if cost is not None]
    kept = pruned(index, candidates, usable) if prune else usable
    steps: dict[int, list[tuple[float, int, int]]] = {}
    for i in kept:
        nodes = candidates[i].nodes
        step_us = (cost_us[i] or 0.0) + transitions.partition_us(candidates[i].target)
        steps.setdefault((nodes & -nodes).bit_length() - 1, []).append((step_us, i, nodes))
    best: dict[int, tuple[float, int, int]] = {0: (0.0, 0, -1)}
    done: set[int] = set()
    queue = [(0.0, 0)]
    while queue:
        cost, covered = heapq.heappop(queue)
        if covered in done:
            continue
        done.add(covered)
        if covered == index.all_nodes:
            chosen = _trace(best, covered)
            objective_us = _objective(index, candidates, cost_us, chosen, transitions)
            return DijkstraResult(chosen, objective_us, len(kept), len(done))
        if len(done) >= max_states:
            return DijkstraResult((), None, len(kept), len(done))
        first = (~covered & (covered + 1)).bit_length() - 1
        for step_us, i, nodes in steps.get(first, ()):
            if nodes & covered:
                continue
            reached, total = covered | nodes, cost + step_us
            if reached not in best or total < best[reached][0]:
                best[reached] = (total, covered, i)
                heapq.heappush(queue, (total, reached))
    raise NoPlanError(
        f"no sequence of the {len(kept)} candidates that pruning left covers the graph; "
        "search without pruning"
    )


def pruned(index: GraphIndex, candidates: Sequence[Candidate], usable: Sequence[int]) -> list[int]:
    """The candidates that the RFC's pruning keeps, ascending."""
    available = list(usable)
    kept: set[int] = set()
    while True:
        maximal = _maximal(index, candidates, available)
        if not maximal - kept:
            return sorted(kept)
        kept |= maximal
        overlapping = _overlapping(index, candidates, sorted(kept))
        available = [i for i in available if i not in overlapping]


def _holders(index: GraphIndex, sets: Sequence[int]) -> list[int]:
    """Per node the sets that contain it, as a bitset over their positions."""
    holders = [0] * len(index.nodes)
    for position, nodes in enumerate(sets):
        for i in bits(nodes):
            holders[i] |= 1 << position
    return holders


def _maximal(index: GraphIndex, candidates: Sequence[Candidate], available: Sequence[int]) -> set[int]:
    found: set[int] = set()
    by_target: dict[Target, list[int]] = {}
    for i in available:
        by_target.setdefault(candidates[i].target, []).append(i)
    for positions in by_target.values():
        holders = _holders(index, [candidates[i].nodes for i in positions])
        for own, i in enumerate(positions):
            around = -1
            for node in bits(candidates[i].nodes):
                around &= holders[node]
                if around == 1 << own:
                    break
            if around == 1 << own:
                found.add(i)
    return found


def _overlapping(index: GraphIndex, candidates: Sequence[Candidate], kept: Sequence[int]) -> set[int]:
    holders = _holders(index, [candidates[i].nodes for i in kept])
    equal: dict[int, int] = {}
    for position, i in enumerate(kept):
        equal[candidates[i].nodes] = equal.get(candidates[i].nodes, 0) | 1 << position
    found = set()
    for i in kept:
        touching = 0
        for node in bits(candidates[i].nodes):
            touching |= holders[node]
        if touching & ~equal[candidates[i].nodes]:
            found.add(i)
    return found


def _trace(best: dict[int, tuple[float, int, int]], covered: int) -> tuple[int, ...]:
    way = []
    while covered:
        _, covered, candidate = best[covered]
        way.append(candidate)
    return tuple(reversed(way))


def _objective(
    index: GraphIndex,
    candidates: Sequence[Candidate],
    cost_us: Sequence[float | None],
    chosen: Sequence[int],
    transitions: Transitions,
) -> float | None:
    partitions = [candidates[i] for i in chosen]
    try:
        execution_order(index, [partition.nodes for partition in partitions])
    except PlanError:
        return None
    own = sum(cost_us[i] or 0.0 for i in chosen)
    return own + transitions.plan_cost(index, partitions)

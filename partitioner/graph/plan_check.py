"""Proof that a plan can run: it covers every node exactly once, and no partitions wait for each other.

Terms: the *quotient graph* has one vertex per partition and an edge where a partition reads what
another makes. Convex partitions can still wait for each other in a cycle, so only the quotient graph as
a whole tells.

Source: the cycles that pairwise checks miss are those of PyTorch issue 86159.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from collage.partitioner.candidate import Plan, bits
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.graph_index import GraphIndex

_SHOWN = 4


class PlanError(BadInputError):
    """A plan does not fit the model: it leaves nodes out, has some twice, or cannot be ordered."""


def check_plan(index: GraphIndex, plan: Plan) -> None:
    """Prove that a plan fits a graph.

    Raises:
        PlanError: a partition is empty or names unknown nodes; a node is in none or two; partitions
            wait for each other; or one stands before another that it reads.
    """
    sets = [partition.nodes for partition in plan.partitions]
    seen = 0
    for nodes in sets:
        if nodes <= 0 or nodes & ~index.all_nodes:
            raise PlanError("a partition is empty or has nodes that the model has not; tune it again")
        if seen & nodes:
            raise PlanError(
                f"{_names(index, seen & nodes)} in two partitions; each node needs just one"
            )
        seen |= nodes
    if seen != index.all_nodes:
        raise PlanError(f"{_names(index, index.all_nodes & ~seen)} in no partition; give each node one")
    execution_order(index, sets)
    done = 0
    for position, nodes in enumerate(sets):
        if _read_by(index, nodes) & ~nodes & ~done:
            raise PlanError(f"partition {position} reads what a later one makes; change their order")
        done |= nodes


def execution_order(index: GraphIndex, node_sets: Sequence[int]) -> list[int]:
    """Positions of disjoint sets (bitsets) that cover a graph, in an order in which they can run.

    Of the sets that are ready, the one with the first node comes first.

    Raises:
        PlanError: some of them wait for each other.
    """
    readers = quotient(index, node_sets)
    waiting = [0] * len(node_sets)
    for targets in readers:
        for reader in targets:
            waiting[reader] += 1
    first = [(nodes & -nodes, position) for position, nodes in enumerate(node_sets)]
    ready = [first[position] for position, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, position = heapq.heappop(ready)
        order.append(position)
        for reader in readers[position]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, first[reader])
    if len(order) < len(node_sets):
        stuck = sum(node_sets[p] & -node_sets[p] for p, count in enumerate(waiting) if count)
        raise PlanError(
            f"{len(node_sets) - len(order)} partitions wait for each other, directly or behind others; "
            f"{_names(index, stuck)} their first; split one of them"
        )
    return order


def quotient(index: GraphIndex, node_sets: Sequence[int]) -> list[set[int]]:
    """Per partition the positions of the partitions that read what it makes."""
    owner = [-1] * len(index.nodes)
    for position, nodes in enumerate(node_sets):
        for i in bits(nodes):
            owner[i] = position
    readers: list[set[int]] = []
    for position, nodes in enumerate(node_sets):
        fed = 0
        for i in bits(nodes):
            fed |= index.successors[i]
        readers.append({owner[i] for i in bits(fed & ~nodes)} - {position, -1})
    return readers


def _read_by(index: GraphIndex, nodes: int) -> int:
    read = 0
    for i in bits(nodes):
        read |= index.predecessors[i]
    return read


def _names(index: GraphIndex, nodes: int) -> str:
    names = [f"{index.nodes[i].name} ({index.nodes[i].op})" for i in bits(nodes)]
    if len(names) == 1:
        return f"node {names[0]} is"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"nodes {', '.join(names[:_SHOWN])}{more} are"

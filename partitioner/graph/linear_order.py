"""A convex set of nodes in a line, and where the line can be cut.

Terms: the line is a topological order that finishes one branch before it begins the next. A *position*
p lies before its p-th node. A value is *live* at a position when it is made before it and read after
it. A value is *global* when many nodes over a long stretch read it (an attention mask): it would be
live nearly everywhere, so it does not count; nor do values from outside the set.

Every run of nodes between two positions is convex.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex

_GLOBAL_READERS = 4
_GLOBAL_SPAN = 0.25
_MOST_GAP, _MOST_LIVE = 8, 4


@dataclass(frozen=True)
class Line:
    """A convex set in a line."""

    order: tuple[int, ...]  # the nodes
    # positions with at most one live value; the first is 0, the last `len(order)`
    waists: tuple[int, ...]
    # the waists, and in long stretches between them the positions with few live values
    cuts: tuple[int, ...]

    def run(self, start: int, end: int) -> int:
        """The nodes between two positions (bitset)."""
        mask = 0
        for i in self.order[start:end]:
            mask |= 1 << i
        return mask


def line(index: GraphIndex, nodes: int) -> Line:
    """Put a convex set (bitset) in a line and find its cuts.

    Long stretches are cut further where few values are live.
    """
    order = linear_order(index, nodes)
    live = live_counts(index, nodes, order)
    inner = [p for p in range(1, len(order)) if live[p] <= 1]
    waists = (0, *inner, len(order))
    cuts = set(waists)
    stretches = list(itertools.pairwise(waists))
    while stretches:
        start, end = stretches.pop()
        if end - start <= _MOST_GAP:
            continue
        middle = (start + end) / 2
        best = min(range(start + 1, end), key=lambda p: (live[p], abs(p - middle)))
        if live[best] <= _MOST_LIVE:
            cuts.add(best)
            stretches += [(start, best), (best, end)]
    return Line(tuple(order), waists, tuple(sorted(cuts)))


def linear_order(index: GraphIndex, nodes: int) -> list[int]:
    """The nodes of a set in a topological order, branch by branch (depth first from the sinks)."""
    members = bits(nodes)
    inside = set(members)
    fed = 0
    for i in members:
        fed |= index.predecessors[i]
    order: list[int] = []
    placed: set[int] = set()
    stack = bits(nodes & ~fed)[::-1]
    while stack:
        node = stack[-1]
        if node in placed:
            stack.pop()
            continue
        waiting = [p for p in _producers(index, node) if p in inside and p not in placed]
        if waiting:
            stack.extend(reversed(waiting))
            continue
        order.append(stack.pop())
        placed.add(node)
    return order


def live_counts(index: GraphIndex, nodes: int, order: list[int]) -> list[int]:
    """Per position how many values are live, global ones left out; one entry more than nodes."""
    position = {node: p for p, node in enumerate(order)}
    change = [0] * (len(order) + 2)
    for node, p in position.items():
        for name in index.nodes[node].outputs:
            readers = bits(index.consumers.get(name, 0) & nodes)
            last = max((position[reader] for reader in readers), default=p)
            if len(readers) >= _GLOBAL_READERS and last - p >= _GLOBAL_SPAN * len(order):
                continue
            change[p + 1] += 1
            change[last + 1] -= 1
    live, counts = 0, []
    for delta in change[:-1]:
        live += delta
        counts.append(live)
    return counts


def _producers(index: GraphIndex, node: int) -> Iterable[int]:
    """The nodes that feed a node, in the order of its inputs."""
    used = index.nodes[node].used
    return dict.fromkeys(index.producer[name] for name in used if name in index.producer)

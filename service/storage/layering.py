"""Places for the nodes of an acyclic graph, in layers.

Source of the layering: Sugiyama, Tagawa and Toda (1981), with one sweep.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def layered(
    nodes: Sequence[Node], edges: Sequence[tuple[Node, Node]]
) -> Mapping[Node, tuple[float, int]]:
    """Places for the nodes of an acyclic graph: (x, y) per node.

    y is the layer from the top, x the place in it, centered on 0.
    """
    before: dict[Node, list[Node]] = {node: [] for node in nodes}
    after: dict[Node, list[Node]] = {node: [] for node in nodes}
    for a, b in edges:
        before[b].append(a)
        after[a].append(b)
    waiting = {node: len(before[node]) for node in nodes}
    ready = [node for node in nodes if not waiting[node]]
    layer: dict[Node, int] = {}
    for node in ready:  # grows while it is walked: a topological order
        layer[node] = max((layer[b] + 1 for b in before[node]), default=0)
        for nxt in after[node]:
            waiting[nxt] -= 1
            if not waiting[nxt]:
                ready.append(nxt)
    rows: dict[int, list[Node]] = defaultdict(list)
    for node in ready:
        rows[layer[node]].append(node)
    x: dict[Node, float] = {}
    for depth in sorted(rows):
        row = rows[depth]
        wish = {node: _mean([x[b] for b in before[node]]) for node in row}
        row.sort(key=lambda node: wish[node])
        for position, node in enumerate(row):
            x[node] = position - (len(row) - 1) / 2
    return {node: (x[node], layer[node]) for node in ready}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0

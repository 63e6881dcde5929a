"""The partition graph of an artifact as data for the page: what to draw and where.

One node per partition with the tensors between them; inside each partition its operators. Places are
computed here, so that the browser only draws. It reads a file from users: run it in a sandboxed child.

Source of the layering: Sugiyama, Tagawa and Toda (1981), with one sweep.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import onnx_ir as ir

from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.tensor import TensorSpec

Node = TypeVar("Node", bound=Hashable)

_PARTITION = "collage.partition"
_TARGET = "collage.target"


def partition_graph(artifact: Path) -> dict[str, Any]:
    """The drawing of an annotated model.

    Returns:
        `partitions`: id, target, x, y, operator counts, and `nodes`/`edges` inside;
        `edges`: from, to, and the tensors between. x counts within a layer, y counts layers.
    """
    model = ir.load(artifact)
    index = GraphIndex.from_ir(model)
    marks = [dict(node.metadata_props) for node in model.graph]
    owner = [mark.get(_PARTITION, "0") for mark in marks]
    ids = sorted(set(owner), key=lambda name: (len(name), name))
    targets = {part: mark.get(_TARGET, "") for part, mark in zip(owner, marks, strict=True)}

    crossing: dict[tuple[str, str], list[TensorSpec]] = defaultdict(list)
    inner: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for node in index.nodes:
        for name in node.used:
            maker = index.producer.get(name)
            if maker is None:
                continue
            edge = (owner[maker], owner[node.index])
            if edge[0] == edge[1]:
                inner[edge[0]].append((maker, node.index))
            elif index.values[name] not in crossing[edge]:
                crossing[edge].append(index.values[name])

    places = layered(ids, list(crossing))
    members: dict[str, list[NodeInfo]] = defaultdict(list)
    for node in index.nodes:
        members[owner[node.index]].append(node)
    return {
        "partitions": [
            {
                "id": part,
                "target": targets[part],
                "x": places[part][0],
                "y": places[part][1],
                "operators": dict(Counter(node.op for node in members[part]).most_common()),
                **_inside(members[part], inner[part], index),
            }
            for part in ids
        ],
        "edges": [
            {"from": a, "to": b, "tensors": [_tensor(spec) for spec in specs]}
            for (a, b), specs in crossing.items()
        ],
    }


def _inside(
    nodes: Sequence[NodeInfo], edges: Sequence[tuple[int, int]], index: GraphIndex
) -> dict[str, Any]:
    places = layered([node.index for node in nodes], edges)
    return {
        "nodes": [
            {
                "id": node.index,
                "name": node.name,
                "op": node.op,
                "x": places[node.index][0],
                "y": places[node.index][1],
                "output": next((_tensor(index.values[name]) for name in node.outputs if name), ""),
            }
            for node in nodes
        ],
        "edges": sorted(set(edges)),
    }


def _tensor(spec: TensorSpec) -> str:
    shape = "×".join("?" if size is None else str(size) for size in spec.shape or ())
    return f"{spec.dtype} {shape}".strip()


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

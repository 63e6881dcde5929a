"""The partition graph of an artifact as data for the page: what to draw and where.

One node per partition with the tensors between them; inside each partition its operators. Places are
computed here, so that the browser only draws. It reads a file from users: run it in a sandboxed child.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.tensor import TensorSpec
from collage.service.storage.layering import layered

_PARTITION = "collage.partition"
_TARGET = "collage.target"
_REPORT = "collage.report"
_LONGEST_TEXT = 120
_MOST_ELEMENTS = 16
# What the report says of a partition, as the page shows it.
_FROM_REPORT = ("latency_us", "predicted_us", "numbers", "prepared", "alternatives", "why")


def partition_graph(artifact: Path) -> dict[str, Any]:
    """The drawing of an annotated model.

    Returns:
        `partitions`: id, target, x, y, operator counts, times and reasons from the report, and
        `nodes`/`edges` inside; `edges`: from, to, the tensors between, their bytes where the sizes are known,
        and the time of their copies where the report tells it. x counts within a layer, y counts layers.
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
    said = _said(model, len(ids))
    copies = _copies(model, len(ids))
    return {
        "partitions": [
            {
                "id": part,
                "target": targets[part],
                "x": places[part][0],
                "y": places[part][1],
                "operators": dict(Counter(node.op for node in members[part]).most_common()),
                **said.get(part, {}),
                **_inside(members[part], inner[part], index),
            }
            for part in ids
        ],
        "edges": [
            {
                "from": a,
                "to": b,
                "tensors": [_tensor(spec) for spec in specs],
                "bytes": _bytes(specs),
                "latency_us": None if copies is None else copies.get((a, b), 0.0),
            }
            for (a, b), specs in crossing.items()
        ],
    }


def _said(model: ir.Model, count: int) -> dict[str, dict[str, Any]]:
    """What the artifact's report says of each partition; nothing where it has none that fits."""
    try:
        parts = json.loads(model.metadata_props.get(_REPORT, "{}")).get("partitions", [])
        if len(parts) != count:
            return {}
        return {str(i): {key: part.get(key) for key in _FROM_REPORT} for i, part in enumerate(parts)}
    except (ValueError, AttributeError, RecursionError):
        return {}


def _copies(model: ir.Model, count: int) -> dict[tuple[str, str], float] | None:
    """Microseconds of copies from partition to partition; None where no report that fits tells them."""
    try:
        report = json.loads(model.metadata_props.get(_REPORT, "{}"))
        if len(report["partitions"]) != count or report.get("transfers") is None:
            return None
        found: dict[tuple[str, str], float] = defaultdict(float)
        for each in report["transfers"]:
            found[str(each["from"]), str(each["to"])] += float(each["latency_us"])
        return dict(found)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return None


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
                "inputs": [_value(index, name) for name in node.inputs if name],
                "outputs": [_value(index, name) for name in node.outputs if name],
                "attributes": {key: _attribute(value) for key, value in node.attributes.items()},
            }
            for node in nodes
        ],
        "edges": sorted(set(edges)),
    }


def _value(index: GraphIndex, name: str) -> list[str]:
    """Name and type of a value; the type of a constant starts with the word."""
    spec = index.values.get(name)
    kind = _tensor(spec) if spec is not None else ""
    return [name, f"constant {kind}".strip() if name in index.constants else kind]


def _attribute(value: object) -> str:
    if isinstance(value, np.ndarray):
        shape = "×".join(str(size) for size in value.shape)
        return f"tensor {value.dtype} {shape}".strip()
    if isinstance(value, tuple):
        more = f", … {len(value)} in all" if len(value) > _MOST_ELEMENTS else ""
        return f"[{', '.join(_attribute(each) for each in value[:_MOST_ELEMENTS])}{more}]"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def _tensor(spec: TensorSpec) -> str:
    shape = "×".join("?" if size is None else str(size) for size in spec.shape or ())
    return f"{spec.dtype} {shape}".strip()


def _bytes(specs: Sequence[TensorSpec]) -> int | None:
    return sum(spec.size_bytes for spec in specs) if all(spec.is_static for spec in specs) else None

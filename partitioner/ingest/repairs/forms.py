"""Forms that ONNX Runtime takes and the ONNX checker refuses, written as both take them.

- A graph without a name gets one.
- `ai.onnx` is the other name of ONNX's own domain: that is the empty one.
- Where a domain is imported twice, or an initializer or an entry of the metadata is there twice, the last one counts.
- Initializers that are no inputs need IR version 4.
- An input that has an initializer needs no type of its own: it has that of the initializer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import onnx

from collage.partitioner.ingest.repairs.walk import graphs_of, nodes_of

_ALIAS = "ai.onnx"
_IR_WITHOUT_INPUTS = 4


def write_common_forms(proto: onnx.ModelProto) -> bool:
    """Write these forms as the checker takes them, in place; whether there were any."""
    changed = _empty_domain(proto)
    for imported in (proto.opset_import, *(function.opset_import for function in proto.functions)):
        changed |= _keep_last(imported, lambda opset: opset.domain)
    changed |= _keep_last(proto.metadata_props, lambda entry: entry.key)
    for graph in graphs_of(proto):
        changed |= _keep_last(graph.initializer, lambda tensor: tensor.name)
        changed |= _give_types(graph)
        if not graph.name:
            graph.name = "graph"
            changed = True
    if proto.ir_version < _IR_WITHOUT_INPUTS and any(map(_has_own_weights, graphs_of(proto))):
        proto.ir_version = _IR_WITHOUT_INPUTS
        changed = True
    return changed


def _empty_domain(proto: onnx.ModelProto) -> bool:
    holders: list[Any] = [*proto.opset_import, *proto.functions]
    for graph in (proto.graph, *proto.functions):
        holders += nodes_of(graph)
    for function in proto.functions:
        holders += function.opset_import
    found = [holder for holder in holders if holder.domain == _ALIAS]
    for holder in found:
        holder.domain = ""
    return bool(found)


def _keep_last(entries: Any, key: Callable[[Any], str]) -> bool:
    """Remove entries that have the key of a later one; whether there were any."""
    seen: set[str] = set()
    before = len(entries)
    for position in reversed(range(before)):
        name = key(entries[position])
        if name in seen:
            del entries[position]
        seen.add(name)
    return len(entries) < before


def _names(values: Iterable[Any]) -> set[str]:
    return {value.name for value in values}


def _has_own_weights(graph: onnx.GraphProto) -> bool:
    return not _names(graph.initializer) <= _names(graph.input)


def _give_types(graph: onnx.GraphProto) -> bool:
    weights = {tensor.name: tensor for tensor in graph.initializer}
    changed = False
    for value in graph.input:
        if value.name in weights and not value.type.tensor_type.HasField("shape"):
            tensor = weights[value.name]
            value.type.CopyFrom(onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims))
            changed = True
    return changed

"""Repairs what runtimes take and the ONNX checker refuses, on the protobuf, before anything is checked.

- Nodes out of topological order are sorted.
- Operators that ONNX Runtime registers in ONNX's own domain pass the checker.
- An output without a type or shape gets the one that inference finds.
- Functions and the model get one opset (`functions`).
- What else has two forms is written in the one that the checker knows (`forms`).
- The axes of Squeeze and Unsqueeze, where they are an attribute, are sorted: ONNX infers a wrong shape otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

from collage.partitioner.errors import ModelError
from collage.partitioner.ingest.repairs.forms import write_common_forms
from collage.partitioner.ingest.repairs.functions import give_one_opset
from collage.partitioner.ingest.repairs.walk import bodies_of, graphs_of, nodes_of

# ONNX Runtime registers these in ONNX's own domain; ONNX does not know them.
RUNTIME_OPERATORS = frozenset(
    {
        *("Affine", "Crop", "DynamicSlice", "GRUUnit", "GivenTensorFill", "ImageScaler"),
        *("LayerNormalization", "MeanVarianceNormalization", "ParametricSoftplus", "Scale"),
        *("ScaledTanh", "SimplifiedLayerNormalization", "ThresholdedRelu"),
    }
)
# A domain that the checker has no operators of, so that it asks nothing.
_UNCHECKED = "collage.unchecked"


def repair(proto: onnx.ModelProto) -> bool:
    """Sort nodes, complete outputs and bring what has several forms to one, in place.

    Returns:
        Whether anything was changed, or an output has no type or shape.

    Raises:
        ModelError: the graph has a cycle, or a function has an opset that nothing can be brought to.
    """
    changed = write_common_forms(proto)
    changed |= give_one_opset(proto)
    changed |= _sort(proto.graph, set())
    changed |= _sort_axes(proto.graph)
    return _complete_outputs(proto) or changed


def check(proto: onnx.ModelProto, path: Path, changed: bool) -> None:
    """Ask the ONNX checker about everything but runtimes' own operators.

    Args:
        proto: the model.
        path: its file; external data lies beside it.
        changed: whether the model differs from the file.

    Raises:
        Exception: what the checker raises.
    """
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)
    foreign = [node for node in nodes_of(proto.graph) if _is_foreign(node, opset)]
    if not changed and not foreign:
        onnx.checker.check_model(str(path))
        return
    copy = without_external_data(proto)
    for node in nodes_of(copy.graph):
        if _is_foreign(node, opset):
            node.domain = _UNCHECKED
    copy.opset_import.append(onnx.helper.make_opsetid(_UNCHECKED, 1))
    for value in filter(_is_open, copy.graph.output):
        # The checker asks for a type and a shape; a runtime tells them later.
        value.type.tensor_type.elem_type = value.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
        value.type.tensor_type.shape.SetInParent()
    onnx.checker.check_model(copy)


def without_external_data(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which what lies in external files, also for bodies and Constant nodes, is an input of the main graph."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    known = {value.name for value in copy.graph.input}
    for graph in list(graphs_of(copy)):
        outside = {tensor.name: tensor for tensor in graph.initializer if _is_outside(tensor)}
        for tensor in outside.values():
            graph.initializer.remove(tensor)
        for node in list(graph.node):
            tensors = [a.t for a in node.attribute if a.HasField("t") and _is_outside(a.t)]
            if node.op_type == "Constant" and tensors:
                outside[node.output[0]] = tensors[0]
                graph.node.remove(node)
        for name, tensor in outside.items():
            if name not in known:
                value = onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
                copy.graph.input.append(value)
                known.add(name)
    return copy


def _is_outside(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _is_foreign(node: onnx.NodeProto, opset: int) -> bool:
    if node.domain not in ("", "ai.onnx") or node.op_type not in RUNTIME_OPERATORS:
        return False
    return not onnx.defs.has(node.op_type, opset)


def _used(node: onnx.NodeProto) -> Iterator[str]:
    """The values that a node reads, those that its bodies capture too."""
    yield from node.input
    for body in bodies_of(node):
        own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        own |= {name for inner in body.node for name in inner.output}
        read = [name for inner in body.node for name in _used(inner)]
        yield from (name for name in (*read, *(v.name for v in body.output)) if name not in own)


def _sort(graph: onnx.GraphProto, outer: set[str]) -> bool:
    """Put each node behind those that it reads; whether the order changed."""
    seen = outer | {value.name for value in graph.input} | {t.name for t in graph.initializer} | {""}
    own = {name for node in graph.node for name in node.output if name}
    changed = False
    for node in graph.node:
        for body in bodies_of(node):
            changed |= _sort(body, seen | own)
    made: set[str] = set()
    ordered = True
    for node in graph.node:
        ordered &= all(name in made or name not in own for name in _used(node))
        made.update(node.output)
    if ordered:
        return changed
    _reorder(graph, own)
    return True


def _reorder(graph: onnx.GraphProto, own: set[str]) -> None:
    maker = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    needs = [{maker[n] for n in _used(node) if n in own} - {i} for i, node in enumerate(graph.node)]
    readers: list[list[int]] = [[] for _ in needs]
    for i, makers in enumerate(needs):
        for j in makers:
            readers[j].append(i)
    left = [len(makers) for makers in needs]
    ready = [i for i, count in enumerate(left) if not count]
    order: list[int] = []
    while ready:
        order.append(ready.pop())
        for reader in readers[order[-1]]:
            left[reader] -= 1
            if not left[reader]:
                ready.append(reader)
    if len(order) < len(needs):
        stuck = next(i for i, count in enumerate(left) if count)
        raise ModelError(f"node {graph.node[stuck].name!r} is part of a cycle; export the model again")
    nodes = [graph.node[i] for i in order]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _sort_axes(graph: onnx.GraphProto) -> bool:
    changed = False
    for node in nodes_of(graph):
        for attribute in node.attribute:
            if node.op_type not in ("Squeeze", "Unsqueeze") or attribute.name != "axes":
                continue
            axes = sorted(attribute.ints)
            if axes[:1] >= [0] and axes != list(attribute.ints):
                attribute.ints[:] = axes
                changed = True
    return changed


def _complete_outputs(proto: onnx.ModelProto) -> bool:
    """Give outputs without a type or shape the inferred one, where there is one; whether there were any."""
    bare = [value for value in proto.graph.output if _is_open(value)]
    if not bare:
        return False
    light = without_external_data(proto)
    try:
        inferred = onnx.shape_inference.infer_shapes(light)
    except Exception:  # then the shape stays unknown, and a runtime is asked
        inferred = light
    found = {v.name: v for v in (*inferred.graph.output, *inferred.graph.value_info)}
    for value in bare:
        known = found.get(value.name)
        if known is not None and not _is_open(known):
            value.CopyFrom(known)
    return True


def lacks_shape(value: onnx.ValueInfoProto) -> bool:
    """True when a tensor is declared without a shape, so that not even its rank is known."""
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


def _is_open(value: onnx.ValueInfoProto) -> bool:
    """True when not even a tensor's rank is declared, or no type at all."""
    return value.type.WhichOneof("value") is None or lacks_shape(value)

"""Versions: IR and operator set brought to what runtimes take.

Node metadata, which artifacts need, exists from IR 10 on. Older opsets stay from 7 on: converting up
makes more nodes, and onnx's converter computes wrong broadcasts below 7. A newer opset is relabeled
when every operator in use is the same in the older one; else onnx's converter is asked.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from collage.partitioner.errors import ModelError
from collage.partitioner.graph import weights
from collage.partitioner.lazy import ir

MIN_IR, MAX_IR = 10, 13
MAX_OPSET = 26
OLDEST_PROMISED_OPSET = 7
_SMALL_BYTES = 1024
# Since when Hardmax takes one axis, a mask of Dropout is true where values are kept, and pixels have centers.
_ONE_AXIS, _TRUE_MASK, _HALF_PIXEL = 13, 12, 11


def is_newer(model: ir.Model) -> bool:
    """Whether runtimes may not take the model because its version is newer than theirs."""
    return model.ir_version > MAX_IR or model.opset_imports.get("", MAX_OPSET) > MAX_OPSET


def convert(model: ir.Model, notes: list[str], least_opset: int = 0) -> ir.Model:
    """The model in a version that runtimes take; `notes` gets one sentence for each change.

    An older model than `least_opset` is converted up to it where onnx's converter can.

    Raises:
        ModelError: an operator cannot be converted.
    """
    if not MIN_IR <= model.ir_version <= MAX_IR:
        model.ir_version = min(max(model.ir_version, MIN_IR), MAX_IR)
    opset = model.opset_imports.get("", MAX_OPSET)
    if opset < OLDEST_PROMISED_OPSET:
        notes.append(
            f"opset {opset} is older than what runtimes promise to take; export the model again"
        )
    if opset < least_opset:
        return _raised(model, least_opset, notes)
    if opset <= MAX_OPSET:
        return model
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise ModelError(
            f"the model is of opset {opset}; known are those up to {newest}: export it to one"
        )
    if not list(_changed_since(model, MAX_OPSET)):
        model.opset_imports[""] = MAX_OPSET
        notes.append(f"opset {opset} lowered to {MAX_OPSET}: every operator in use is the same there")
        return model
    converted = _converted(model, MAX_OPSET)
    notes.append(f"opset {opset} converted to {MAX_OPSET}")
    return converted


def _raised(model: ir.Model, target: int, notes: list[str]) -> ir.Model:
    opset = model.opset_imports[""]
    try:
        _refuse_misread(model)
        raised = _converted(model, target)
    except ModelError as error:
        notes.append(f"left as it is, so nothing in it can be quantized: {error}")
        return model
    notes.append(
        f"opset {opset} converted to {target}, in which weights can have a scale for each channel"
    )
    return raised


def _refuse_misread(model: ir.Model) -> None:
    """Refuse operators of which onnx's converter makes something that computes other values.

    Raises:
        ModelError: there is one.
    """
    opset = model.opset_imports[""]
    for node in _onnx_nodes(model):
        is_mask_read = len(node.outputs) > 1 and (
            node.outputs[1].uses() or node.outputs[1].is_graph_output()
        )
        if (
            (node.op_type == "Hardmax" and opset < _ONE_AXIS)
            or (node.op_type == "Dropout" and opset < _TRUE_MASK and is_mask_read)
            or (node.op_type in ("Resize", "Upsample") and opset < _HALF_PIXEL and not _repeats(node))
        ):
            raise ModelError(
                f"onnx's converter makes another computation of {node.name!r} ({node.op_type}) of opset {opset}"
            )


def _repeats(node: ir.Node) -> bool:
    """Whether a Resize or Upsample only repeats elements, which is the same in each opset."""
    mode, scales = node.attributes.get("mode"), node.attributes.get("scales")
    given = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] else None
    factors = [] if given is None else given.numpy().reshape(-1).tolist()
    if scales is not None:
        factors = list(scales.as_floats())
    is_nearest = mode is None or mode.as_string() == "nearest"
    return is_nearest and bool(factors) and all(f >= 1 and f == round(f) for f in factors)


def _onnx_nodes(model: ir.Model) -> Iterator[ir.Node]:
    return (node for node in ir.traversal.RecursiveGraphIterator(model.graph) if node.domain == "")


def _changed_since(model: ir.Model, version: int) -> Iterator[str]:
    opset = model.opset_imports[""]
    for node in _onnx_nodes(model):
        if onnx.defs.get_schema(node.op_type, opset).since_version > version:
            yield f"{node.name!r} ({node.op_type})"


def _converted(model: ir.Model, target: int) -> ir.Model:
    opset = model.opset_imports[""]
    if any(node.graph is not model.graph for node in _onnx_nodes(model)):
        raise ModelError(
            f"opset {opset} cannot be converted to {target} in a model with If, Loop or Scan"
        )
    proto = weights.whole_structure(model)
    large: list[ir.Value] = []
    for value in model.graph.initializers.values():
        if weights.data_of(value).nbytes <= _SMALL_BYTES:
            proto.graph.initializer.append(ir.serde.serialize_tensor(weights.data_of(value)))
            proto.graph.initializer[-1].name = value.name or ""
        else:  # the converter needs only its type, and a protobuf could not hold it
            large.append(value)
            proto.graph.input.append(ir.serde.serialize_value(value))
    try:
        converted: ir.Model = ir.from_proto(onnx.version_converter.convert_version(proto, target))
    except Exception as error:
        changed = ", ".join(_changed_since(model, target))
        raise ModelError(
            f"the model cannot be converted from opset {opset} to {target} ({changed}): {error}"
        ) from error
    by_name = {value.name: value for value in converted.graph.inputs}
    for value in large:
        twin = by_name[value.name]
        converted.graph.inputs.remove(twin)
        twin.const_value = value.const_value
        converted.graph.register_initializer(twin)
    _restore_shapes(model, converted)
    return converted


def _restore_shapes(model: ir.Model, converted: ir.Model) -> None:
    """Undo what the converter makes of unknown sizes: -1 inside a model, 0 at its outputs."""
    given = {v.name: v.shape for v in _values(model)}
    for value in _values(converted):
        value.shape = given.get(value.name)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    graph = model.graph
    yield from graph.inputs
    yield from (value for node in graph for value in node.outputs)

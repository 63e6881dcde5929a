"""What a model may not do: read files that are not its own, bring native code, or be malformed.

The checks run on the protobuf before it is interpreted, in a sandboxed child, since `onnx.checker` may
crash. No file outside the model's folder is opened even there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import onnx

from collage.partitioner.errors import ModelError
from collage.partitioner.ingest.repairs import repair
from collage.partitioner.ingest.repairs.names import repair_names
from collage.partitioner.ingest.repairs.sparse import write_out
from collage.partitioner.lazy import ir

MAX_PROTOBUF_BYTES = (1 << 31) - 1
KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
_NO_TENSORS = {
    "map_type": "a map",
    "sequence_type": "a sequence",
    "optional_type": "an optional value",
    "sparse_tensor_type": "a sparse tensor",
}
_PACKED = {
    onnx.TensorProto.DataType.Value(name): name
    for name in ("UINT2", "INT2", "UINT4", "INT4", "FLOAT4E2M1")
}
# ONNX Runtime writes these when it optimizes a model for the processor at hand.
_OPTIMIZED_DOMAINS = frozenset({"com.microsoft.nchwc", "com.ms.internal.nhwc"})


def read_checked(path: Path) -> onnx.ModelProto:
    """Parse a model file without external data, and check that it is safe and well-formed.

    Where the file is a link, such as those of a cache of downloads, its external data may be links to files beside that
    to which it leads. In the result they have the names of those files.

    Raises:
        ModelError: says what is wrong and, for a node, its name, operator and domain.
    """
    proto = _parse(path)
    if not proto.graph.node:
        raise ModelError(f"{path.name} is not an ONNX model, or a model without nodes")
    changed = repair_names(proto)
    changed |= write_out(proto)
    folder = path.resolve().parent
    for tensor in _tensors([proto.graph]):
        changed |= path.is_symlink() and _follow_link(tensor, path.parent, folder)
        _check_tensor(tensor, folder)
    _check_operators(proto)
    _check_values(proto)
    try:
        changed |= repair.repair(proto)
        repair.check(proto, path.resolve(), changed)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"the ONNX checker refuses {path.name}: {_first_line(error)}") from error
    return proto


def _parse(path: Path) -> onnx.ModelProto:
    size = path.stat().st_size
    if size > MAX_PROTOBUF_BYTES:
        raise ModelError(
            f"{path.name} has {size} bytes, more than a protobuf can hold; "
            "save its weights as external data and send both in a zip"
        )
    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:
        raise ModelError(f"{path.name} is not an ONNX model (damaged or truncated): {error}") from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    stack = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    while stack:
        node = stack.pop()
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                stack.extend(body.node)


def _tensors(graphs: list[onnx.GraphProto]) -> Iterator[onnx.TensorProto]:
    while graphs:
        graph = graphs.pop()
        yield from graph.initializer
        for node in graph.node:
            for attribute in node.attribute:
                yield from _attribute_tensors(attribute)
                graphs.extend((attribute.g, *attribute.graphs))


def _attribute_tensors(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
        if sparse.HasField("values"):
            raise ModelError("sparse tensors are not supported; store them dense")


def _check_operators(proto: onnx.ModelProto) -> None:
    own = {(function.domain, function.name) for function in proto.functions}
    for function in proto.functions:
        for node in function.node:
            for attribute in node.attribute:
                for tensor in _attribute_tensors(attribute):
                    if tensor.data_location == onnx.TensorProto.EXTERNAL:
                        raise ModelError(f"function {function.name!r} keeps a tensor in external data")
    for node in _nodes(proto):
        at_hand = f"node {node.name!r} ({node.op_type} of domain {node.domain or 'ai.onnx'!r})"
        if node.op_type == "EPContext":
            raise ModelError(
                f"{at_hand} holds a compiled blob of one machine; send the model before it was compiled"
            )
        if node.domain in _OPTIMIZED_DOMAINS:
            raise ModelError(
                f"{at_hand} is what ONNX Runtime writes when it optimizes a model for one processor; "
                "send the model before that, or written at the level 'extended' or below"
            )
        if (node.domain, node.op_type) not in own and node.domain not in KNOWN_DOMAINS:
            known = ", ".join(sorted(domain for domain in KNOWN_DOMAINS if domain))
            raise ModelError(
                f"{at_hand} is of an unknown operator domain; known are {known}, and functions "
                "that the model itself defines. Replace the custom operator or leave it out"
            )


def _check_values(proto: onnx.ModelProto) -> None:
    """Refuse maps, sequences and optional values, which no partition can be given, and inputs of unknown rank."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    for value in proto.graph.input:
        if value.name not in weights and value.type.WhichOneof("value") is None:
            raise ModelError(
                f"input {value.name!r} has no type; export the model with the type and shape of its inputs"
            )
        if value.name not in weights and repair.lacks_shape(value):
            raise ModelError(
                f"input {value.name!r} has no shape, so even its rank is unknown; export the model with the shape of "
                "its inputs (free dimensions may have names)"
            )
    for kind, values in (("input", proto.graph.input), ("output", proto.graph.output)):
        for value in values:
            element = value.type.tensor_type.elem_type
            if value.name not in weights and element in _PACKED:
                raise ModelError(
                    f"{kind} {value.name!r} is of {_PACKED[element].lower()}, which runtimes hand over to nobody; cast it "
                    "inside the model, to int8 or a float"
                )
            of_maps = value.type.sequence_type.elem_type.HasField("map_type")
            held = next(
                (words for field, words in _NO_TENSORS.items() if value.type.HasField(field)), ""
            )
            if held:
                remedy = " (for scikit-learn: zipmap=False)" if of_maps or held == "a map" else ""
                raise ModelError(
                    f"{kind} {value.name!r} is not a tensor but {'a sequence of maps' if of_maps else held}, which "
                    f"partitions cannot pass on; export the model with tensors only{remedy}"
                )


def _check_tensor(tensor: onnx.TensorProto, folder: Path) -> None:
    at_hand = f"tensor {tensor.name!r}"
    if any(dim < 0 for dim in tensor.dims):
        raise ModelError(f"{at_hand} has a negative dimension {list(tensor.dims)}")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        _check_external(tensor, folder, at_hand)
    elif tensor.HasField("raw_data") and len(tensor.raw_data) != _size_bytes(tensor, at_hand):
        raise ModelError(
            f"{at_hand} of shape {list(tensor.dims)} needs {_size_bytes(tensor, at_hand)} bytes "
            f"and has {len(tensor.raw_data)}"
        )


def _size_bytes(tensor: onnx.TensorProto, at_hand: str) -> int:
    try:
        bits: int = ir.DataType(tensor.data_type).bitwidth
    except (ValueError, TypeError):
        raise ModelError(
            f"{at_hand} has data of type {tensor.data_type}, which has no raw form"
        ) from None
    size: int = -(-math.prod(tensor.dims) * bits // 8)
    return size


def _follow_link(tensor: onnx.TensorProto, linked: Path, folder: Path) -> bool:
    """Name external data as the file to which its link beside a linked model leads; whether it is such a link."""
    entry = next((entry for entry in tensor.external_data if entry.key == "location"), None)
    if entry is None or not _is_plain(entry.value):
        return False
    link = linked / entry.value
    if not link.is_symlink():
        return False
    file = link.resolve()
    if file.parent != folder:
        raise ModelError(
            f"tensor {tensor.name!r}: external data {entry.value!r} is a symbolic link to another folder than the "
            "model's own; put both files in one folder"
        )
    entry.value = file.name
    return True


def _is_plain(location: str) -> bool:
    """Whether a location cannot lead out of the model's folder."""
    name = PurePosixPath(location)
    odd = "\\" in location or ":" in location or "\0" in location
    return bool(location) and not (name.is_absolute() or ".." in name.parts or odd)


def _check_external(tensor: onnx.TensorProto, folder: Path, at_hand: str) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if not _is_plain(location):
        raise ModelError(
            f"{at_hand}: external data {location!r} must be a plain path in the model's folder"
        )
    path = folder
    for part in PurePosixPath(location).parts:
        path /= part
        if path.is_symlink():
            raise ModelError(
                f"{at_hand}: external data {location!r} is a symbolic link; put the file there"
            )
    if not path.is_file():
        raise ModelError(
            f"{at_hand}: external data {location!r} is missing; send the model and its data in one zip"
        )
    status = path.stat()
    if status.st_nlink > 1:
        raise ModelError(f"{at_hand}: external data {location!r} has several hard links; make a copy")
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", 0)) or _size_bytes(tensor, at_hand)
    except ValueError:
        raise ModelError(
            f"{at_hand}: external data has an offset or length that is no number"
        ) from None
    if offset < 0 or length != _size_bytes(tensor, at_hand) or offset + length > status.st_size:
        raise ModelError(
            f"{at_hand} of shape {list(tensor.dims)} does not fit in external data {location!r} "
            f"(offset {offset}, length {length}, file {status.st_size} bytes)"
        )

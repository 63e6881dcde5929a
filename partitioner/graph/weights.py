"""Weights on their way between files: streamed in chunks, never through a protobuf when they are large.

Terms: a model's *structure* is everything but the data of its main graph's initializers. Weights are
*inline* while they are at most 1 GiB together, else *external*: in one file beside the model, every
large tensor on a page border so that runtimes can map it.

Invariants: what is written depends on the content alone; a file is complete or absent. External files
are copied, never linked: onnx refuses files with several links as an attack.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from collage.partitioner.errors import ModelError
from collage.partitioner.lazy import ir
from collage.partitioner.wire_format import METADATA_PREFIX

INLINE_LIMIT_BYTES = 1 << 30

_GRAPH_FIELD = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER_FIELD = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA_FIELD = onnx.TensorProto.RAW_DATA_FIELD_NUMBER

_CHUNK_BYTES = 1 << 24
_PAGE_BYTES = 4096
_SMALL_BYTES = 1024


def data_of(value: ir.Value) -> ir.TensorProtocol:
    """The tensor of an initializer.

    Raises:
        ModelError: the initializer has no data.
    """
    if value.const_value is None:
        raise ModelError(f"initializer {value.name!r} has no data")
    return value.const_value


def chunks(tensor: ir.TensorProtocol) -> Iterator[bytes | memoryview]:
    """The little-endian bytes of a tensor, piece by piece."""
    if tensor.dtype == ir.DataType.STRING:
        for text in _texts(tensor):
            yield len(text).to_bytes(8, "little") + text
    elif isinstance(tensor, ir.ExternalTensor):
        yield from _file_chunks(tensor)
    else:
        data = memoryview(tensor.tobytes())
        if len(data) != tensor.nbytes:
            raise ModelError(
                f"tensor {tensor.name!r} has {len(data)} bytes in place of {tensor.nbytes}"
            )
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]


def total_bytes(initializers: Iterable[ir.Value]) -> int:
    """Size of the data of these initializers in bytes."""
    return sum(_size_bytes(data_of(value)) for value in initializers)


def structure(
    model: ir.Model, nodes: Iterable[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
) -> onnx.ModelProto:
    """These nodes of a model as a protobuf with everything but the data of initializers."""
    view = ir.GraphView(
        inputs,
        outputs,
        nodes=tuple(nodes),
        name=model.graph.name or "graph",
        opset_imports=dict(model.opset_imports),
    )
    bare = ir.Model(view, ir_version=model.ir_version)  # type: ignore[arg-type]
    proto = ir.serde.serialize_model(bare)
    _drop_repeated_value_info(proto.graph)
    for value in [v for v in proto.graph.value_info if not v.HasField("type")]:
        proto.graph.value_info.remove(value)  # the checker refuses a shape without a type
    return proto


def whole_structure(model: ir.Model) -> onnx.ModelProto:
    """The whole model as `structure` gives it."""
    return structure(model, model.graph, model.graph.inputs, model.graph.outputs)


def described_structure(model: ir.Model) -> onnx.ModelProto:
    """The same with the metadata of the model's author, which no digest counts."""
    proto = whole_structure(model)
    for key, value in model.metadata_props.items():
        if not key.startswith(METADATA_PREFIX):
            proto.metadata_props.add(key=key, value=value)
    return proto


def write(
    proto: onnx.ModelProto,
    initializers: Sequence[ir.Value],
    path: Path,
    inline_limit_bytes: int | None = None,
) -> None:
    """Write a structure and its weights as an ONNX file; large weights go to `<name>.weights`.

    Args:
        proto: what `structure` gave.
        initializers: the weights, in the order in which they are to stand.
        path: the file to write; an existing one is replaced.
        inline_limit_bytes: total size up to which weights stay inside the file; by default 1 GiB.
    """
    outside = _Layout(f"{path.name}.weights")
    limit = INLINE_LIMIT_BYTES if inline_limit_bytes is None else inline_limit_bytes
    inline = total_bytes(initializers) <= limit
    entries = [_entry(value, None if inline else outside) for value in initializers]
    if outside.tensors:
        _replace(path.with_name(outside.location), outside.pieces())
    _replace(path, _file_pieces(proto, entries))


def digest(model: ir.Model) -> str:
    """SHA-256 of a model's structure and weights as hex text, without this project's own metadata."""
    proto = whole_structure(model)
    for node in proto.graph.node:
        kept = [entry for entry in node.metadata_props if not entry.key.startswith(METADATA_PREFIX)]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    hasher = hashlib.sha256(proto.SerializeToString(deterministic=True))
    for name, value in sorted(model.graph.initializers.items()):
        tensor = data_of(value)
        hasher.update(f"\0{name}\0{tensor.dtype.name}\0{list(tensor.shape.numpy())}\0".encode())
        for chunk in chunks(tensor):
            hasher.update(chunk)
    return hasher.hexdigest()


def _size_bytes(tensor: ir.TensorProtocol) -> int:
    if tensor.dtype == ir.DataType.STRING:
        return sum(len(text) for text in _texts(tensor))
    return tensor.nbytes


def _texts(tensor: ir.TensorProtocol) -> list[bytes]:
    if isinstance(tensor, ir.StringTensor):
        return list(tensor.string_data())
    return [t if isinstance(t, bytes) else str(t).encode() for t in tensor.numpy().flat]


def _file_chunks(tensor: ir.ExternalTensor) -> Iterator[bytes]:
    left = tensor.length if tensor.length is not None else tensor.nbytes
    # Reading instead of mapping: mapped pages would count as this process's memory.
    with Path(tensor.path).open("rb") as file:
        file.seek(tensor.offset or 0)
        while left:
            chunk = file.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise ModelError(f"external data {tensor.location} of {tensor.name!r} ends too early")
            left -= len(chunk)
            yield chunk


def _drop_repeated_value_info(graph: onnx.GraphProto) -> None:
    """Keep one entry per inner value: a sub-graph's border values are described there already."""
    known = {value.name for value in (*graph.input, *graph.output)}
    kept = []
    for value in graph.value_info:
        if value.name not in known:
            known.add(value.name)
            kept.append(value)
    del graph.value_info[:]
    graph.value_info.extend(kept)


@dataclass
class _Layout:
    """Where each tensor stands in the file of external weights."""

    location: str
    tensors: list[tuple[int, ir.TensorProtocol]] = field(default_factory=list)
    end: int = 0

    def place(self, tensor: ir.TensorProtocol) -> int:
        offset = -(-self.end // _PAGE_BYTES) * _PAGE_BYTES
        self.tensors.append((offset, tensor))
        self.end = offset + tensor.nbytes
        return offset

    def pieces(self) -> Iterator[bytes | memoryview]:
        end = 0
        for offset, tensor in self.tensors:
            yield bytes(offset - end)
            yield from chunks(tensor)
            end = offset + tensor.nbytes


@dataclass(frozen=True)
class _Entry:
    """A TensorProto's bytes but for its inline data, and that data."""

    head: bytes
    data: ir.TensorProtocol | None

    @property
    def size(self) -> int:
        return len(self.head) + (self.data.nbytes if self.data is not None else 0)


def _entry(value: ir.Value, outside: _Layout | None) -> _Entry:
    tensor = data_of(value)
    proto = onnx.TensorProto(
        name=value.name, data_type=tensor.dtype.value, dims=[int(d) for d in tensor.shape.numpy()]
    )
    if tensor.dtype == ir.DataType.STRING:
        proto.string_data.extend(_texts(tensor))
        return _Entry(proto.SerializeToString(deterministic=True), None)
    # Small tensors stay inline: shape inference must see constants such as axes.
    if outside is None or tensor.nbytes < _SMALL_BYTES:
        head = proto.SerializeToString(deterministic=True)
        return _Entry(head + _field(_RAW_DATA_FIELD, tensor.nbytes), tensor)
    proto.data_location = onnx.TensorProto.EXTERNAL
    place = {"location": outside.location, "offset": outside.place(tensor), "length": tensor.nbytes}
    for key, text in place.items():
        proto.external_data.add(key=key, value=str(text))
    return _Entry(proto.SerializeToString(deterministic=True), None)


def _file_pieces(proto: onnx.ModelProto, entries: Sequence[_Entry]) -> Iterator[bytes | memoryview]:
    """A ModelProto's bytes, put together here so that no weight is copied into a protobuf object.

    Fields stand in the order of their numbers: OpenVINO does not recognize files with another order.
    """
    graph = proto.graph.SerializeToString(deterministic=True)
    before, after = onnx.ModelProto(), onnx.ModelProto()
    before.CopyFrom(proto)
    after.CopyFrom(proto)
    for field_of_proto in proto.DESCRIPTOR.fields:
        if field_of_proto.number >= _GRAPH_FIELD:
            before.ClearField(field_of_proto.name)
        if field_of_proto.number <= _GRAPH_FIELD:
            after.ClearField(field_of_proto.name)
    size = len(graph) + sum(len(_field(_INITIALIZER_FIELD, e.size)) + e.size for e in entries)
    yield before.SerializeToString(deterministic=True)
    yield _field(_GRAPH_FIELD, size) + graph
    for entry in entries:
        yield _field(_INITIALIZER_FIELD, entry.size) + entry.head
        if entry.data is not None:
            yield from chunks(entry.data)
    yield after.SerializeToString(deterministic=True)


def _field(number: int, length: int) -> bytes:
    """Tag and length of a length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(length)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _replace(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)

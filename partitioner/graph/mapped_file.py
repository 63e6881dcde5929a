"""Opens an ONNX file without its weights: each large initializer becomes a place in the file itself.

Invariant: the file must stay as it is while the model is used, since weights are read when they are asked for.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import onnx

from collage.partitioner.lazy import ir
from collage.partitioner.wire_format import fields

_GRAPH = onnx.ModelProto.GRAPH_FIELD_NUMBER
_INITIALIZER = onnx.GraphProto.INITIALIZER_FIELD_NUMBER
_RAW_DATA = onnx.TensorProto.RAW_DATA_FIELD_NUMBER
_LEAST_BYTES = 1024


def open_mapped(path: Path) -> ir.Model:
    """The model of an ONNX file, whose large weights stay in the file until they are asked for.

    Raises:
        Exception: the file is no ONNX model.
    """
    path = path.resolve()
    if path.stat().st_nlink > 1:  # onnx-ir takes no weights from a file with several links
        return ir.load(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        proto = _without_weights(data, path.name)
    model = ir.serde.deserialize_model(proto)
    ir.external_data.set_base_dir(model.graph, path.parent)
    return model


def _without_weights(data: mmap.mmap, name: str) -> onnx.ModelProto:
    model, graph = bytearray(), bytearray()
    tensors: list[onnx.TensorProto] = []
    for number, begin, start, end in fields(data):
        if number != _GRAPH:
            model += data[begin:end]
            continue
        for inner, inner_begin, inner_start, inner_end in fields(data, start, end):
            if inner == _INITIALIZER:
                tensors.append(_tensor(data, inner_start, inner_end, name))
            else:
                graph += data[inner_begin:inner_end]
    proto = onnx.ModelProto.FromString(bytes(model))
    proto.graph.MergeFromString(bytes(graph))
    proto.graph.initializer.extend(tensors)
    return proto


def _tensor(data: mmap.mmap, start: int, end: int, name: str) -> onnx.TensorProto:
    head, place = bytearray(), None
    for number, begin, inside, after in fields(data, start, end):
        if number == _RAW_DATA and after - inside >= _LEAST_BYTES:
            place = {"location": name, "offset": inside, "length": after - inside}
        else:
            head += data[begin:after]
    tensor = onnx.TensorProto.FromString(bytes(head))
    if place is not None:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
    return tensor

"""Models of half precision, computed in single precision.

Where values are rounded to float16 differs from runtime to runtime. The reference is the model without
such roundings.

Invariant: only the types change. Weights and graph inputs keep the values that float16 gave them, and
outputs are rounded once (`collage.backends.numerics.reference`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx
from onnx import numpy_helper

_HALF, _SINGLE = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
# Attributes that name a type: of Cast, of random numbers, of quantized ones, of Attention.
_NAME_A_TYPE = {"to", "dtype", "output_dtype", "stash_type", "softmax_precision"}


def is_half(model: onnx.ModelProto) -> bool:
    """Whether a model has any value of half precision; weights may be missing."""
    return any(_in_graph(graph) for graph in _graphs(model.graph))


def widen(model: onnx.ModelProto) -> list[str]:
    """Make all that is half precision single, in place.

    Returns:
        The outputs that were of half precision, by name.
    """
    halves = [value.name for value in model.graph.output if _of_half(value.type)]
    for graph in _graphs(model.graph):
        for value_type in _types(graph):
            for tensor in _tensor_types(value_type):
                tensor.elem_type = _SINGLE if tensor.elem_type == _HALF else tensor.elem_type
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name in _NAME_A_TYPE and attribute.i == _HALF:
                    attribute.i = _SINGLE
        for tensor in _tensors(graph):
            if tensor.data_type == _HALF:
                wide = numpy_helper.to_array(tensor).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    return halves


def _in_graph(graph: onnx.GraphProto) -> bool:
    if any(map(_of_half, _types(graph))):
        return True
    named = (a.i for node in graph.node for a in node.attribute if a.name in _NAME_A_TYPE)
    return _HALF in named or any(tensor.data_type == _HALF for tensor in _tensors(graph))


def _types(graph: onnx.GraphProto) -> Iterator[onnx.TypeProto]:
    """Of values, and those that attributes hold (of Optional)."""
    yield from (value.type for value in (*graph.input, *graph.output, *graph.value_info))
    yield from (a.tp for node in graph.node for a in node.attribute if a.HasField("tp"))


def _of_half(value_type: onnx.TypeProto) -> bool:
    return any(tensor.elem_type == _HALF for tensor in _tensor_types(value_type))


def _tensor_types(value_type: onnx.TypeProto) -> Iterator[onnx.TypeProto.Tensor]:
    kind = value_type.WhichOneof("value")
    if kind == "tensor_type":
        yield value_type.tensor_type
    elif kind in ("sequence_type", "optional_type"):
        yield from _tensor_types(getattr(value_type, kind).elem_type)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and the bodies of its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(body)


def _tensors(graph: onnx.GraphProto) -> Iterable[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors

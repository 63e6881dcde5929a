"""Sparse weights written out, as ONNX Runtime does when it loads a model."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import numpy_helper

from collage.partitioner.errors import ModelError

# A few bytes may stand for a tensor of any size.
_MOST_BYTES = 1 << 28


def write_out(proto: onnx.ModelProto) -> bool:
    """Make sparse initializers and sparse Constant nodes dense, in place; whether there were any.

    Raises:
        ModelError: one is damaged, or too large.
    """
    changed = False
    graphs = [proto.graph, *(body for f in proto.functions for n in f.node for body in _bodies(n))]
    nodes = [node for function in proto.functions for node in function.node]
    while graphs:
        graph = graphs.pop()
        if graph.sparse_initializer:
            changed = True
            graph.initializer.extend([_dense(sparse) for sparse in graph.sparse_initializer])
            del graph.sparse_initializer[:]
        nodes += graph.node
        graphs += [body for node in graph.node for body in _bodies(node)]
    for node in nodes:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "sparse_value":
                dense = _dense(attribute.sparse_tensor)
                attribute.CopyFrom(onnx.helper.make_attribute("value", dense))
                changed = True
    return changed


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [body for attribute in node.attribute for body in (attribute.g, *attribute.graphs)]


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """The tensor with its zeros, under the name of its values."""
    values, dims = sparse.values, list(sparse.dims)
    at_hand = f"sparse tensor {values.name!r} of shape {dims}"
    external = onnx.TensorProto.EXTERNAL
    if external in (values.data_location, sparse.indices.data_location):
        raise ModelError(f"{at_hand} keeps its values in external data; store it dense")
    try:
        kept, places = numpy_helper.to_array(values), numpy_helper.to_array(sparse.indices)
    except Exception as error:
        raise ModelError(f"{at_hand} cannot be read: {error}") from error
    if min(dims, default=1) < 0 or math.prod(dims) * kept.itemsize > _MOST_BYTES:
        raise ModelError(
            f"{at_hand} is larger than {_MOST_BYTES >> 20} MiB when its zeros are written out; "
            "store it dense, as external data"
        )
    whole = np.zeros(dims, kept.dtype)
    if places.ndim > 1:
        inside = places.shape == (kept.size, len(dims)) and bool(
            ((places >= 0) & (places < dims)).all()
        )
        flat = np.ravel_multi_index(tuple(places.T), dims) if inside and kept.size else places[:0, 0]
    else:
        inside = places.shape == kept.shape and bool(((places >= 0) & (places < whole.size)).all())
        flat = places
    if not inside or kept.ndim != 1:
        raise ModelError(f"{at_hand} has places outside it, or not one for each value")
    whole.reshape(-1)[flat] = kept
    return numpy_helper.from_array(whole, values.name)

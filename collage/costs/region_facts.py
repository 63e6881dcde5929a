"""What a region is, for people: its operators, a class of its shapes, its data type.

Conv Relu   4-D 3x3, up to 256k   float32
"""

from __future__ import annotations

import math

from collage.cost_db.atlas import UNKNOWN, RegionFacts
from collage.partitioner.candidate import bits
from collage.partitioner.graph.fingerprint import fingerprint
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.graph.sub_graph import SubGraph
from collage.partitioner.tensor import TensorSpec

_CONVOLUTIONS, _PRODUCTS = {"Conv", "ConvTranspose", "ConvInteger"}, {"MatMul", "Gemm"}
# Sizes of the largest value, in elements.
_SIZES = ((1 << 10, "1k"), (1 << 14, "16k"), (1 << 18, "256k"), (1 << 22, "4M"))


def facts_of(index: GraphIndex, nodes: int) -> RegionFacts:
    """What a region (bitset) is."""
    members = [index.nodes[i] for i in bits(nodes)]
    region = SubGraph(index, nodes)
    values = [index.values[name] for name in (*region.inputs, *region.outputs)]
    largest = max(values, key=lambda spec: spec.size_bytes, default=None)
    return RegionFacts(
        sub_graph=fingerprint(index, nodes),
        kind=" ".join(sorted({node.op for node in members})),
        shape_class=_shape_class(index, members, largest),
        dtype=UNKNOWN if largest is None else largest.dtype,
    )


def _shape_class(index: GraphIndex, members: list[NodeInfo], largest: TensorSpec | None) -> str:
    if largest is None or not largest.is_static:
        return UNKNOWN
    elements = math.prod(largest.static_shape)
    size = next((f"up to {text}" for limit, text in _SIZES if elements <= limit), "over 4M")
    own = next((text for node in members if (text := _of_operator(index, node))), "")
    rank = f"{len(largest.static_shape)}-D"
    return f"{rank} {own}, {size}" if own else f"{rank}, {size}"


def _of_operator(index: GraphIndex, node: NodeInfo) -> str:
    """What decides the kernel of a convolution or a product."""
    weight = index.input_spec(node.index, 1)
    if weight is None or not weight.is_static:
        return ""
    shape = weight.static_shape
    if node.op_type in _CONVOLUTIONS and len(shape) > 2:
        kernel = "x".join(map(str, shape[2:]))
        group = node.attributes.get("group", 1)
        return f"{kernel} grouped" if isinstance(group, int) and group > 1 else kernel
    if node.op_type in _PRODUCTS:
        given = index.input_spec(node.index, 0)
        if given is None or not given.is_static or not given.static_shape:
            return ""
        rows = math.prod(given.static_shape[:-1])
        return "one row" if rows == 1 else "rows"
    return ""

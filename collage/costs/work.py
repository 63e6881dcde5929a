"""What operators do at known shapes, in one number that their time is nearly proportional to.

A product or a convolution counts its multiply-adds, and every operator the bytes that it reads and writes. Both are
weighted by what a core does in a nanosecond, so that the sum over a graph is near its time.
"""

from __future__ import annotations

import math

from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo

# Of one core in a nanosecond, roughly; only their ratio matters.
_MULTIPLY_ADDS, _BYTES = 20.0, 8.0
_CONVOLUTIONS = {"Conv", "ConvTranspose", "ConvInteger", "QLinearConv"}
_PRODUCTS = {"MatMul", "Gemm", "MatMulInteger", "QLinearMatMul"}


def work_of(index: GraphIndex, nodes: int | None = None) -> float:
    """The work of nodes (bitset, None for all) whose shapes are known; values of unknown shape count nothing."""
    members = index.nodes if nodes is None else [index.nodes[i] for i in bits(nodes)]
    return math.fsum(_work(index, node) for node in members)


def node_works(index: GraphIndex) -> list[float]:
    """The work of each node; of many regions, sums of these (`math.fsum`) are quicker than `work_of`."""
    return [_work(index, node) for node in index.nodes]


def _work(index: GraphIndex, node: NodeInfo) -> float:
    values = [index.values[name] for name in (*node.used, *node.outputs) if name]
    moved = sum(spec.size_bytes for spec in values)
    return moved / _BYTES + _multiply_adds(index, node) / _MULTIPLY_ADDS


def _multiply_adds(index: GraphIndex, node: NodeInfo) -> float:
    specs = [index.values[name] for name in (*node.inputs[:2], *node.outputs[:1]) if name]
    if len(specs) < 3 or not all(spec.is_static for spec in specs):
        return 0.0
    given, weight, made = (spec.static_shape for spec in specs)
    if node.op_type in _CONVOLUTIONS and len(weight) > 2:
        # Each element of the larger side meets a filter for each channel of its group.
        per_element = math.prod(weight[1:])
        elements = given if node.op_type == "ConvTranspose" else made
        return float(math.prod(elements) * per_element)
    if node.op_type in _PRODUCTS and given:
        inner = given[0] if node.op_type == "Gemm" and node.attributes.get("transA", 0) else given[-1]
        return float(math.prod(made) * inner)
    return 0.0

"""Weights of 4 or 8 bits in blocks: each block of a channel's inputs has its own scale and zero point.

A product becomes `MatMulNBits` of com.microsoft, which ONNX Runtime and OpenVINO read: no operator of
ai.onnx below opset 21 has blocks. Both keep the weights so in memory, and round a product's input while
they run. `onnxruntime.quantization` rounds the weights, each to the nearest.

A Gemm becomes such a product and an addition.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from collage.backends.quantization.bias_correction import constant_value
from collage.backends.support.conversion import write_streamed
from collage.partitioner.lazy import ir

Array = np.ndarray

OPERATOR, DOMAIN = "MatMulNBits", "com.microsoft"
_VERSION = 1
# Of the operator: products of integers.
_ACCURACY_LEVEL = 4


def write_blocks(
    source: Path, destination: Path, names: frozenset[str], bits: int, block_size: int
) -> None:
    """Write a model whose products have weights in blocks.

    Args:
        source: the float model, weights inside, those of Gemms as (inputs, channels).
        names: of the products.
        bits: of a weight.
        block_size: weights with one scale.
    """
    model = ir.load(source)
    for node in [node for node in model.graph if node.name in names]:
        _replace(model.graph, node, bits, block_size)
    model.opset_imports[DOMAIN] = _VERSION
    write_streamed(model, destination)


def _replace(graph: ir.Graph, node: ir.Node, bits: int, block_size: int) -> None:
    """Put a product with weights in blocks into the place of a MatMul or Gemm."""
    read, weight, *rest = node.inputs
    assert weight is not None and weight.const_value is not None
    array = weight.const_value.numpy()
    parts = zip(("packed", "scales", "zeros"), _rounded(array, bits, block_size), strict=True)
    stored = [constant_value(graph, f"{node.name}/{name}", part) for name, part in parts]
    numbers = {
        **dict(zip("KN", array.shape, strict=True)),
        **{"bits": bits, "block_size": block_size, "accuracy_level": _ACCURACY_LEVEL},
    }
    attributes = {name: ir.AttrInt64(name, number) for name, number in numbers.items()}
    product = ir.Node(DOMAIN, OPERATOR, [read, *stored], attributes, name=node.name)
    nodes, made, old = [product], product.outputs[0], node.outputs[0]
    made.type, made.shape = old.type, old.shape
    if rest and rest[0] is not None:
        made.name = f"{node.name}/product"
        nodes.append(ir.Node("", "Add", [made, rest[0]], name=f"{node.name}/bias"))
    result = nodes[-1].outputs[0]
    result.name, result.type, result.shape = old.name, old.type, old.shape
    graph.insert_before(node, nodes)
    ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
    old.name = None
    graph.remove(node, safe=True)


def _rounded(array: Array, bits: int, block_size: int) -> tuple[Array, Array, Array]:
    """Packed weights, scales and zero points, as the operator reads them."""
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        DefaultWeightOnlyQuantizer,
    )

    config = DefaultWeightOnlyQuantConfig(block_size=block_size, bits=bits)
    made: tuple[Array, Array, Array] = DefaultWeightOnlyQuantizer(config).qbits_block_quant(array)
    return made

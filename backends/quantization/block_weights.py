"""Weights of 4 or 8 bits in blocks: each block of a channel's inputs has its own scale and zero point.

A product becomes `MatMulNBits` of com.microsoft, which ONNX Runtime and OpenVINO read: no operator of
ai.onnx below opset 21 has blocks. Both keep the weights so in memory, and round a product's input while
they run. `onnxruntime.quantization` finds scales and zero points, and rounds each weight to the nearest. With
samples weights are rounded by what products read in them (`error_feedback`): what ONNX Runtime 1.31 calls
GPTQ rounds to the nearest too, since it reads the wrong half of a triangular matrix.

A Gemm becomes such a product and an addition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from collage.backends.quantization.bias_correction import constant_value
from collage.backends.quantization.error_feedback import fed_back
from collage.backends.quantization.gram_matrices import gram_matrices, slices
from collage.backends.support.conversion import write_streamed
from collage.partitioner.lazy import ir

Array = np.ndarray

OPERATOR, DOMAIN = "MatMulNBits", "com.microsoft"
_VERSION = 1
# Of the operator: products of integers.
_ACCURACY_LEVEL = 4


def write_blocks(
    source: Path,
    destination: Path,
    names: frozenset[str],
    bits: int,
    block_size: int,
    samples: Sequence[Mapping[str, Array]] = (),
) -> None:
    """Write a model whose products have weights in blocks.

    Args:
        source: the float model, weights inside, those of Gemms as (inputs, channels); with samples a
            temporary file lies beside it.
        names: of the products.
        bits: of a weight; 4 where samples are given.
        block_size: weights with one scale.
        samples: inputs of the model to round by; none to round each weight to the nearest.
    """
    model = ir.load(source)
    left = {node: _inputs(node) for node in model.graph if node.name in names}
    reads = {name: count for name, count in left.values() if name} if samples else {}
    for grams in gram_matrices(source, reads, samples):
        for node in [node for node, (name, _) in left.items() if name in grams]:
            _replace(model.graph, node, bits, block_size, grams[left.pop(node)[0]])
    for node in left:
        _replace(model.graph, node, bits, block_size)
    model.opset_imports[DOMAIN] = _VERSION
    write_streamed(model, destination)


def _inputs(node: ir.Node) -> tuple[str, int]:
    """What a product reads, or no name where it is a constant; and how many inputs a channel has."""
    read, weight = node.inputs[:2]
    assert read is not None and weight is not None and weight.const_value is not None
    return "" if read.is_initializer() else read.name or "", len(weight.const_value.numpy())


def _replace(
    graph: ir.Graph, node: ir.Node, bits: int, block_size: int, grams: Sequence[Array] = ()
) -> None:
    """Put a product with weights in blocks into the place of a MatMul or Gemm."""
    read, weight, *rest = node.inputs
    assert weight is not None and weight.const_value is not None
    array = weight.const_value.numpy()
    packed, scales, zeros = _rounded(array, bits, block_size)
    if grams:
        packed = _fed_back(array, scales, zeros, block_size, grams)
    parts = {"packed": packed, "scales": scales, "zeros": zeros}
    stored = [constant_value(graph, f"{node.name}/{name}", part) for name, part in parts.items()]
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


def _fed_back(
    array: Array, scales: Array, zeros: Array, block_size: int, grams: Sequence[Array]
) -> Array:
    """Packed weights of 4 bits on the same scales and zero points, rounded by Gram matrices of their inputs."""
    inputs, channels = array.shape
    blocks = scales.size // channels
    steps, zero = (
        np.repeat(each.reshape(channels, -1)[:, :blocks].T, block_size, axis=0)
        for each in (scales, np.stack([zeros & 15, zeros >> 4], axis=-1))
    )
    whole = zero.copy()  # what is padded is zero
    steps = np.where(steps == 0, np.float32(1), steps)
    least = -zero.astype(np.int16)
    for part, gram in zip(slices(inputs), grams, strict=True):
        rows = slice(part.start, min(part.stop, inputs))
        found = fed_back(array[rows], steps[rows], gram, least[rows], least[rows] + 15)
        whole[rows] += found.view(np.uint8)  # wraps around to the sum
    whole = whole.T.reshape(channels, blocks, block_size)
    packed: Array = whole[..., ::2] | whole[..., 1::2] << 4
    return packed

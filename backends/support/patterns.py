"""Patterns that several runtimes compute as one kernel; each backend picks those it has, with the reason.

Variants that differ in the order of inputs have names of their own
(`collage.partitioner.rules.pattern`).
"""

from __future__ import annotations

from typing import Any

from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.rules.pattern import Pattern

Op = Any
Value = Any


def _conv(op: Op, x: Value) -> Value:
    return op.Conv(x, _allow_other_inputs=True)


def _normed(op: Op, x: Value) -> Value:
    return op.BatchNormalization(_conv(op, x), _allow_other_inputs=True)


def _layer_norm(op: Op, x: Value, axes: Value, two: Value, epsilon: Value, s: Value, b: Value) -> Value:
    centered = op.Sub(x, op.ReduceMean(x, axes))
    variance = op.ReduceMean(op.Pow(centered, two), axes)
    return op.Add(op.Mul(op.Div(centered, op.Sqrt(op.Add(variance, epsilon))), s), b)


def _layer_norm_axes_attribute(
    op: Op, x: Value, two: Value, epsilon: Value, s: Value, b: Value
) -> Value:
    centered = op.Sub(x, op.ReduceMean(x))
    variance = op.ReduceMean(op.Pow(centered, two))
    return op.Add(op.Mul(op.Div(centered, op.Sqrt(op.Add(variance, epsilon))), s), b)


def _attention(op: Op, q: Value, k: Value, v: Value) -> Value:
    return op.MatMul(op.Softmax(op.MatMul(q, k)), v)


def _scaled_attention(op: Op, q: Value, k: Value, v: Value, scale: Value) -> Value:
    return op.MatMul(op.Softmax(op.Div(op.MatMul(q, k), scale)), v)


def _masked_attention(op: Op, q: Value, k: Value, v: Value, scale: Value, mask: Value) -> Value:
    return op.MatMul(op.Softmax(op.Add(op.Div(op.MatMul(q, k), scale), mask)), v)


def _bias_gelu(op: Op, x: Value, w: Value, b: Value, root: Value, one: Value, half: Value) -> Value:
    biased = op.Add(op.MatMul(x, w), b)
    return op.Mul(op.Mul(biased, op.Add(op.Erf(op.Div(biased, root)), one)), half)


def _constant_second_factor(index: GraphIndex, members: tuple[int, ...]) -> str | None:
    """A fused product has its weights packed when it is compiled, so they must be constant."""
    product = next(index.nodes[i] for i in members if index.nodes[i].op_type == "MatMul")
    return None if set(product.inputs) & index.constants else "neither factor is constant"


CONV_RELU = Pattern("conv_relu", lambda op, x: op.Relu(_conv(op, x)))
CONV_CLIP = Pattern("conv_clip", lambda op, x: op.Clip(_conv(op, x), _allow_other_inputs=True))
CONV_LEAKY = Pattern("conv_leaky_relu", lambda op, x: op.LeakyRelu(_conv(op, x)))
CONV_SIGMOID = Pattern("conv_sigmoid", lambda op, x: op.Sigmoid(_conv(op, x)))
CONV_HARD_SWISH = Pattern("conv_hard_swish", lambda op, x: op.HardSwish(_conv(op, x)))
CONV_NORM = Pattern("conv_norm", _normed)
CONV_NORM_RELU = Pattern("conv_norm_relu", lambda op, x: op.Relu(_normed(op, x)))
CONV_ADD_RELU = Pattern("conv_add_relu", lambda op, x, y: op.Relu(op.Add(_conv(op, x), y)))
ADD_CONV_RELU = Pattern("add_conv_relu", lambda op, x, y: op.Relu(op.Add(y, _conv(op, x))))
CONV_SUM_RELU = Pattern("conv_sum_relu", lambda op, x, y: op.Relu(op.Sum(_conv(op, x), y)))
CONV_NORM_ADD_RELU = Pattern("conv_norm_add_relu", lambda op, x, y: op.Relu(op.Add(_normed(op, x), y)))
CONV_NORM_SUM_RELU = Pattern("conv_norm_sum_relu", lambda op, x, y: op.Relu(op.Sum(_normed(op, x), y)))
CONV_SWISH = Pattern("conv_swish", lambda op, x: _swish(op, _conv(op, x)))
MATMUL_BIAS = Pattern(
    "matmul_bias", lambda op, x, w, b: op.Add(op.MatMul(x, w), b), _constant_second_factor
)
BIAS_MATMUL = Pattern(
    "bias_matmul", lambda op, x, w, b: op.Add(b, op.MatMul(x, w)), _constant_second_factor
)
MATMUL_BIAS_GELU = Pattern("matmul_bias_gelu", _bias_gelu, _constant_second_factor)
GEMM_RELU = Pattern("gemm_relu", lambda op, x: op.Relu(op.Gemm(x, _allow_other_inputs=True)))
LAYER_NORM = Pattern("layer_norm", _layer_norm)
LAYER_NORM_OLD = Pattern("layer_norm_axes_attribute", _layer_norm_axes_attribute)
ATTENTION = Pattern("attention", _attention)
SCALED_ATTENTION = Pattern("scaled_attention", _scaled_attention)
MASKED_ATTENTION = Pattern("masked_attention", _masked_attention)
NORM_POOL = Pattern("lrn_max_pool", lambda op, x: op.MaxPool(op.LRN(x)))


def _swish(op: Op, x: Value) -> Value:
    return op.Mul(x, op.Sigmoid(x))

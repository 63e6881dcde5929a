"""What a part of a model is, as numbers that a predictor learns from.

Terms: *work* is multiplications and additions of convolutions, products and recurrent layers; *traffic* is the bytes
of values that nodes write. Sizes are logarithms, and kinds are shares of all work or of all traffic.

Invariant: a list of numbers has one meaning for one `EDITION`; change it with the features.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.graph.op_kind import OpKind, kind_of

EDITION = 1

_KERNELS = (
    *("1x1", "3x3", "3x3 strided", "wide", "depthwise", "grouped", "transposed", "along one axis"),
    *("product", "one row", "recurrent"),
)
_LIGHT = ("elementwise", "normalization", "reduction", "pooling", "layout", "lookup", "int8", "other")
NAMES = (
    *("nodes", "work", "traffic", "weights", "largest", "channels", "places"),
    *(f"work of {kernel}" for kernel in _KERNELS),
    *(f"traffic of {kind}" for kind in _LIGHT),
    "bodies",
)
_RECURRENT = {"LSTM": 4, "GRU": 3, "RNN": 1}
_LIGHT_OPS = {
    **dict.fromkeys(
        ("BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization"),
        "normalization",
    ),
    **dict.fromkeys(("LRN", "Softmax", "LogSoftmax", "RMSNormalization"), "normalization"),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "Resize", "Upsample"), "pooling"),
    **dict.fromkeys(("Gather", "GatherND", "GatherElements", "ScatterND", "TopK"), "lookup"),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"), "int8"),
}
_OF_KIND = {
    OpKind.ELEMENTWISE: "elementwise",
    OpKind.BROADCAST: "elementwise",
    OpKind.INJECTIVE: "layout",
    OpKind.REDUCTION: "reduction",
}
# What a core may do in a microsecond, roughly: predictions are factors on this, so that they reach beyond the sizes seen.
_WORK_PER_US, _BYTES_PER_US, _NODE_US = 5e4, 5e3, 1.0


def features(index: GraphIndex, nodes: int) -> tuple[float, ...]:
    """The features of a part (bitset), as `NAMES` has them."""
    members = [index.nodes[i] for i in bits(nodes)]
    work: dict[str, float] = defaultdict(float)
    traffic: dict[str, float] = defaultdict(float)
    channels = places = 0.0
    for node in members:
        kernel, amount = _work(index, node)
        if kernel:
            work[kernel] += amount
            narrow, wide = _extents(index, node)
            channels += amount * narrow
            places += amount * wide
        else:
            traffic[_light(node)] += _written(index, node)
    weights = sum(
        index.values[name].size_bytes
        for name in {name for node in members for name in node.used if name in index.constants}
    )
    all_work, light = sum(work.values()), sum(traffic.values())
    written = [_written(index, node) for node in members]
    return (
        math.log(max(len(members), 1)),
        math.log1p(all_work),
        math.log1p(sum(written)),
        math.log1p(weights),
        math.log1p(max(written, default=0.0)),
        channels / all_work if all_work else 0.0,
        places / all_work if all_work else 0.0,
        *(work[kernel] / all_work if all_work else 0.0 for kernel in _KERNELS),
        *(traffic[kind] / light if light else 0.0 for kind in _LIGHT),
        float(sum(node.has_body for node in members)),
    )


def nominal_us(values: Iterable[float]) -> float:
    """What a part with these features takes on no machine in particular; a scale to learn factors on."""
    nodes, work, traffic, weights, *_ = values
    moved = math.expm1(traffic) + math.expm1(weights)
    return math.expm1(work) / _WORK_PER_US + moved / _BYTES_PER_US + math.exp(nodes) * _NODE_US


def _written(index: GraphIndex, node: NodeInfo) -> float:
    return float(sum(index.values[name].size_bytes for name in node.outputs if name in index.values))


def _light(node: NodeInfo) -> str:
    if node.op_type in _LIGHT_OPS:
        return _LIGHT_OPS[node.op_type]
    return _OF_KIND.get(kind_of(node.domain, node.op_type), "other")


def _shape(index: GraphIndex, name: str) -> tuple[int, ...]:
    spec = index.values.get(name)
    return spec.static_shape if spec is not None and spec.is_static else ()


def _work(index: GraphIndex, node: NodeInfo) -> tuple[str, float]:
    """Which kernel computes a node, and how much; empty for one that computes little."""
    kind = node.op_type
    if len(node.inputs) < 2 or not node.outputs:
        return "", 0.0
    given, weight, made = (
        _shape(index, name) for name in (node.inputs[0], node.inputs[1], node.outputs[0])
    )
    if kind in ("QLinearConv", "QLinearMatMul") and len(node.inputs) > 3:
        weight, kind = _shape(index, node.inputs[3]), kind.removeprefix("QLinear")
    if kind in ("Conv", "ConvInteger") and len(weight) > 2:
        return _convolution(node, weight), 2.0 * math.prod(made) * math.prod(weight[1:])
    if kind == "ConvTranspose" and len(weight) > 2:
        return "transposed", 2.0 * math.prod(given) * math.prod(weight[1:])
    if kind in ("MatMul", "Gemm", "MatMulInteger", "FusedMatMul") and given and weight:
        swapped = bool(node.attributes.get("transA", 0)) and len(given) == 2
        depth = given[0] if swapped else given[-1]
        rows = math.prod(made[:-1])
        return "one row" if rows == 1 else "product", 2.0 * math.prod(made) * depth
    if kind in _RECURRENT and len(weight) == 3 and len(given) == 3:
        hidden = weight[1] // _RECURRENT[kind]
        steps = given[0] * given[1] * weight[0]
        return "recurrent", 2.0 * steps * weight[1] * (weight[2] + hidden)
    return "", 0.0


def _convolution(node: NodeInfo, weight: tuple[int, ...]) -> str:
    group = node.attributes.get("group", 1)
    if isinstance(group, int) and group > 1:
        return "depthwise" if weight[1] == 1 else "grouped"
    kernel = weight[2:]
    if len(kernel) == 1:
        return "along one axis"
    if max(kernel) == 1:
        return "1x1"
    if max(kernel) > 3:
        return "wide"
    strides = node.attributes.get("strides", ())
    is_strided = isinstance(strides, (tuple, list)) and any(stride > 1 for stride in strides)
    return "3x3 strided" if is_strided else "3x3"


def _extents(index: GraphIndex, node: NodeInfo) -> tuple[float, float]:
    """How narrow a kernel's weights are, and at how many places it is applied, as logarithms."""
    weight, made = _shape(index, node.inputs[1]), _shape(index, node.outputs[0])
    narrow = min(weight[:2]) if len(weight) > 1 else 1
    places = math.prod(made[2:]) if len(weight) > 2 else math.prod(made[:-1])
    return math.log1p(max(narrow, 0)), math.log1p(max(places, 0))

"""What is offered to ncnn: operators of convolution nets, in the forms that pnnx converts rightly."""

from __future__ import annotations

from backends import predicates
from partitioner.graph_index import GraphIndex, NodeInfo

ONNX_OPERATORS: frozenset[str] = frozenset(
    """
    Abs Add AveragePool BatchNormalization Clip Concat Conv ConvTranspose Div Dropout Elu Exp Flatten
    Gelu Gemm GlobalAveragePool GlobalMaxPool HardSigmoid HardSwish Identity LRN LeakyRelu Log MatMul
    Max MaxPool Min Mul Neg PRelu Pad Reciprocal Relu Reshape Resize Selu Sigmoid Softmax Softplus
    Sqrt Sub Sum Tanh
    """.split()  # noqa: SIM905  (words read better than a list of quoted ones)
)
_SPATIAL = {"AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "LRN", "MaxPool"}
_WEIGHTED = {"Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2), "MatMul": (1,), "PRelu": (1,)}
_FLAT_SOFTMAX_BEFORE = 13


def refuse_shapes(index: GraphIndex, node: NodeInfo) -> str | None:
    """Refuse variables that are not float32 of shape (1, N), (1, H, W) or (1, C, H, W)."""
    read = [s for s in predicates.input_specs(index, node) if s.name not in index.constants]
    if not read:
        return f"{node.op} computes from constants alone"
    for spec in (*read, *predicates.output_specs(index, node)):
        if spec.dtype != "float32":
            return f"ncnn is given float32 only; {spec.name!r} of {node.op} is {spec.dtype}"
        shape = spec.static_shape
        if not 2 <= len(shape) <= 4 or shape[0] != 1 or 0 in shape:
            return f"ncnn is given batches of one with two to four dimensions; {spec.name!r} is {shape}"
    return None


def refuse_forms(index: GraphIndex, node: NodeInfo) -> str | None:
    """Refuse forms of known operators that have no ncnn layer or a different meaning there."""
    kind = node.op_type
    rank = predicates.rank_of(index.input_spec(node.index, 0))
    if kind in _SPATIAL | {"GlobalMaxPool"} and rank != 4:
        return f"ncnn is given {kind} of four dimensions only"
    for position in _WEIGHTED.get(kind, ()):
        if position < len(node.inputs) and not predicates.is_constant(index, node, position):
            return f"ncnn takes {kind} with constant weights only"
    if kind == "MaxPool" and len(node.outputs) > 1:
        return "ncnn takes MaxPool without indices only"
    if kind == "Gemm" and (node.attributes.get("transA") or rank != 2):
        return "ncnn takes Gemm without transA only"
    if kind == "Softmax" and not _softmax_of_one_axis(index, node):
        return "before opset 13 Softmax flattens all axes that follow; ncnn takes one"
    if kind in {"Concat", "Softmax"} and _axis(node, rank) == 0:
        return f"{kind} over the batch dimension, which ncnn does not have"
    if kind == "Flatten" and node.attributes.get("axis", 1) != 1:
        return "ncnn flattens all but the batch dimension only"
    return None


def _axis(node: NodeInfo, rank: int | None) -> int:
    axis = node.attributes.get("axis", -1 if node.opset >= _FLAT_SOFTMAX_BEFORE else 1)
    return axis % rank if isinstance(axis, int) and rank else 0


def _softmax_of_one_axis(index: GraphIndex, node: NodeInfo) -> bool:
    spec = index.input_spec(node.index, 0)
    if node.opset >= _FLAT_SOFTMAX_BEFORE or spec is None:
        return True
    shape = spec.static_shape
    return all(d == 1 for d in shape[_axis(node, len(shape)) + 1 :])

"""The ONNX operators that ncnn takes: those of convolution nets, in the forms that pnnx converts rightly."""

from __future__ import annotations

from collage.backends.support import predicates
from collage.backends.support.predicates import op_names
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo

ONNX_OPERATORS: frozenset[str] = op_names(
    """
    Abs Add AveragePool BatchNormalization Clip Concat Conv ConvTranspose Div Dropout Elu Exp
    Flatten Gelu Gemm GlobalAveragePool GlobalMaxPool HardSigmoid HardSwish Identity LRN
    LayerNormalization LeakyRelu Log MatMul Max MaxPool Min Mul Neg PRelu Pad Reciprocal
    ReduceMean Relu Reshape Resize Selu Sigmoid Slice Softmax Softplus Split Sqrt Squeeze Sub
    Sum Tanh Transpose Unsqueeze
    """
)
_SPATIAL = {
    *("AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool", "LRN", "MaxPool")
}
_WEIGHTED = {"Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2), "PRelu": (1,)}
_FLAT_SOFTMAX_BEFORE = 13


def refuse_shapes(index: GraphIndex, node: NodeInfo) -> str | None:
    """Refuse variables that are not float32 with a first dimension of one."""
    read = [s for s in predicates.input_specs(index, node) if s.name not in index.constants]
    if not read:
        return f"{node.op} computes from constants alone"
    for spec in (*read, *predicates.output_specs(index, node)):
        if spec.dtype != "float32":
            return f"ncnn is given float32 only; {spec.name!r} of {node.op} is {spec.dtype}"
        shape = spec.static_shape
        if not 2 <= len(shape) <= 5 or shape[0] != 1 or 0 in shape:
            return f"ncnn is given batches of one with two to five dimensions; {spec.name!r} is {shape}"
    return None


def refuse_forms(index: GraphIndex, node: NodeInfo) -> str | None:
    """Refuse forms of known operators that have no ncnn layer or a different meaning there."""
    kind = node.op_type
    rank = predicates.rank_of(index.input_spec(node.index, 0))
    if kind in _SPATIAL and rank not in ((4,) if kind == "LRN" else (3, 4)):
        return f"ncnn is given {kind} of one or two axes of space only"
    for position in _WEIGHTED.get(kind, ()):
        if position < len(node.inputs) and not predicates.is_constant(index, node, position):
            return f"ncnn takes {kind} with constant weights only"
    if kind == "Resize" and node.attributes.get("mode") == "cubic":
        return "ncnn is not given cubic Resize, of which it knows one kind only"
    if kind == "AveragePool" and not predicates.pads_evenly(node):
        return "pnnx takes AveragePool with equal pads at both ends only"
    if kind == "MaxPool" and len(node.outputs) > 1:
        return "ncnn takes MaxPool without indices only"
    if kind == "Gemm" and (node.attributes.get("transA") or rank != 2):
        return "ncnn takes Gemm without transA only"
    if kind in {"Concat", "Softmax"} and _axis(node, rank) == 0:
        return f"{kind} over the batch dimension, which ncnn does not have"
    if kind == "Transpose" and not _keeps_batch_first(node):
        return "ncnn cannot move the batch dimension, which it does not have"
    if kind == "Flatten" and node.attributes.get("axis", 1) != 1:
        return "ncnn flattens all but the batch dimension only"
    return None


def _axis(node: NodeInfo, rank: int | None) -> int:
    axis = node.attributes.get("axis", -1 if node.opset >= _FLAT_SOFTMAX_BEFORE else 1)
    return axis % rank if isinstance(axis, int) and rank else 0


def _keeps_batch_first(node: NodeInfo) -> bool:
    order = node.attributes.get("perm", ())
    return isinstance(order, tuple) and order[:1] == (0,)

"""The ONNX operators that MNN's converter takes.

Found by running ONNX's own node tests through MNN 3.6: an operator is listed when its tests are right
in the forms that models use. `refuse_forms` keeps away the forms that give wrong numbers or crash;
`collage.backends.support.conversion` makes defaults explicit that the converter misreads.
"""

from __future__ import annotations

from collage.backends.support import conversion, predicates
from collage.backends.support.predicates import op_names
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo

ONNX_OPERATORS: frozenset[str] = op_names(
    """
    Abs Acos Acosh Add ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast
    Ceil Celu Clip Concat Conv ConvTranspose Cos Cosh DepthToSpace Div Dropout Elu Erf Exp
    Expand Flatten Floor Gather GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool HardSigmoid
    HardSwish Identity InstanceNormalization LRN LayerNormalization LeakyRelu Log LogSoftmax
    LpNormalization MatMul Max MaxPool MeanVarianceNormalization Min Mul Neg PRelu Pad Pow
    Reciprocal ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape Resize Selu
    Shape Sigmoid Sign Sin Sinh Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze
    Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose Unsqueeze
    """
)
_POOLS = {"AveragePool", "MaxPool"}
_UNNAMED_AXES = 3  # inputs of a Pad that does not name its axes


def refuse_forms(index: GraphIndex, node: NodeInfo) -> str | None:
    """Refuse forms of known operators that MNN gets wrong."""
    rank = predicates.rank_of(index.input_spec(node.index, 0))
    kind = node.op_type
    if kind == "Gemm" and node.attributes.get("transA"):
        return "MNN computes Gemm with transA wrongly"
    if kind == "MatMul" and 1 in (rank, predicates.rank_of(index.input_spec(node.index, 1))):
        return "MNN reads beyond the operands of MatMul when one of them is a vector"
    if kind in _POOLS | {"ConvTranspose"} and rank not in (3, 4):
        return f"MNN takes {kind} of one or two axes of space only"
    if kind == "ConvTranspose" and _pads_begin_first(node):
        return "MNN pads ConvTranspose at the other end where the shape or SAME_LOWER is given, and crashes with groups"
    if kind in _POOLS | {"Conv"} and node.attributes.get("auto_pad") == "SAME_LOWER":
        return f"MNN pads {kind} at the other end where SAME_LOWER is given"
    if kind in {"GlobalAveragePool", "GlobalMaxPool"} and rank not in (3, 4):
        return f"MNN takes {kind} of one or two axes of space only"
    if kind in _POOLS and (len(node.outputs) > 1 or _dilated(node)):
        return f"MNN takes {kind} without indices and dilations only"
    if kind in {"Max", "Min", "Sum"} and len(node.inputs) < 2:
        return f"MNN takes {kind} of two or more inputs only"
    if kind in {"Max", "Min", "Sum"} and len(node.inputs) > 2 and _broadcasts(index, node):
        return f"MNN broadcasts two inputs of {kind} only"
    if kind in {"ArgMax", "ArgMin"} and node.attributes.get("select_last_index"):
        return f"MNN's {kind} selects the first index only"
    if kind == "Dropout" and len(node.outputs) > 1:
        return "MNN takes Dropout without its mask only"
    if kind == "LogSoftmax":
        return conversion.refuse_flattening_softmax(index, node)
    if kind == "Slice" and _has_negative(index, node, 4):
        return "MNN reads beyond the data of Slice with negative steps"
    if kind == "Pad" and _has_negative(index, node, 1):
        return "MNN writes beyond its memory for Pad with negative pads"
    if kind == "Pad" and (len(node.inputs) > _UNNAMED_AXES or node.attributes.get("mode") == "wrap"):
        return "MNN takes Pad of all axes, without wrap, only"
    if kind.startswith("Reduce") and _is_empty(index, node, 1):
        return f"MNN misreads an empty list of axes of {kind}"
    if kind == "Resize" and _resizes_oddly(node):
        return "MNN computes this mode of Resize wrongly"
    if kind == "BatchNormalization" and node.attributes.get("training_mode"):
        return "MNN takes BatchNormalization for inference only"
    if kind == "BatchNormalization" and not _has_constant_parameters(index, node):
        return "MNN crashes on BatchNormalization whose parameters are no constants"
    return None


def _pads_begin_first(node: NodeInfo) -> bool:
    """Whether ONNX computes pads of a ConvTranspose so that more of them are at the begin."""
    word = node.attributes.get("auto_pad", "NOTSET")
    return word == "SAME_LOWER" or ("output_shape" in node.attributes and word != "SAME_UPPER")


def _broadcasts(index: GraphIndex, node: NodeInfo) -> bool:
    return len({spec.shape for spec in predicates.input_specs(index, node)}) > 1


def _has_negative(index: GraphIndex, node: NodeInfo, position: int) -> bool:
    """Whether a small constant input has a negative number."""
    name = node.inputs[position] if len(node.inputs) > position else ""
    values = index.constant_values.get(name)
    return values is not None and bool((values < 0).any())


def _is_empty(index: GraphIndex, node: NodeInfo, position: int) -> bool:
    """Whether a constant input has no elements."""
    name = node.inputs[position] if len(node.inputs) > position else ""
    values = index.constant_values.get(name)
    return values is not None and not values.size


def _resizes_oddly(node: NodeInfo) -> bool:
    mode = node.attributes.get("mode", "nearest")
    if mode == "nearest":
        return node.attributes.get("nearest_mode") == "ceil"
    place = node.attributes.get("coordinate_transformation_mode")
    return mode == "cubic" or place == "tf_crop_and_resize"


def _has_constant_parameters(index: GraphIndex, node: NodeInfo) -> bool:
    return all(predicates.is_constant(index, node, i) for i in range(1, len(node.inputs)))


def _dilated(node: NodeInfo) -> bool:
    dilations = node.attributes.get("dilations", ())
    return isinstance(dilations, tuple) and any(d != 1 for d in dilations)

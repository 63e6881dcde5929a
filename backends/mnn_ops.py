"""What MNN's converter takes, and what must be made explicit for it.

Found by running ONNX's own node tests through MNN 3.6: an operator stands in the table when its tests
give right numbers in the forms that models use. The rest of this file keeps away the forms that gave
wrong numbers or crashed:

* pooling without `strides` divides by zero, softmax without `axis` takes the last one whatever the
  operator set says: `make_explicit` writes these defaults into the model before it is converted;
* Gemm with `transA`, reductions of all axes without naming them, pooling and transposed convolution
  of other than four dimensions, variadic operators with one input.
"""

from __future__ import annotations

import onnx_ir as ir

from backends import predicates
from partitioner.graph_index import GraphIndex, NodeInfo

ONNX_OPERATORS: frozenset[str] = frozenset(
    """
    Abs Acos Acosh Add ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast Ceil Celu
    Clip Concat Conv ConvTranspose Cos Cosh DepthToSpace Div Elu Erf Exp Expand Flatten Floor Gather
    GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool HardSigmoid HardSwish Identity
    InstanceNormalization LRN LayerNormalization LeakyRelu Log LogSoftmax LpNormalization MatMul Max
    MaxPool MeanVarianceNormalization Min Mul Neg PRelu Pad Pow Reciprocal ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum Relu Reshape Resize Selu Shape Sigmoid Sign Sin Sinh Slice Softmax
    Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK
    Transpose Unsqueeze
    """.split()  # noqa: SIM905  (words read better than a list of quoted ones)
)
_REDUCTIONS = {"ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"}
_POOLS = {"AveragePool", "MaxPool"}
_SOFTMAXES = {"Softmax", "LogSoftmax"}
_FLAT_SOFTMAX_BEFORE = 13


def refuse_forms(index: GraphIndex, node: NodeInfo) -> str | None:
    """Refuse forms of known operators that MNN gets wrong."""
    rank = predicates.rank_of(index.input_spec(node.index, 0))
    kind = node.op_type
    if kind == "Gemm" and node.attributes.get("transA"):
        return "MNN computes Gemm with transA wrongly"
    if kind in _REDUCTIONS and "axes" not in node.attributes and len(node.inputs) < 2:
        return f"MNN does not reduce all axes when {kind} names none"
    if kind in _POOLS | {"ConvTranspose"} and rank != 4:
        return f"MNN takes {kind} of four dimensions only"
    if kind in _POOLS and (len(node.outputs) > 1 or _dilated(node)):
        return f"MNN takes {kind} without indices and dilations only"
    if kind in {"Max", "Min", "Sum"} and len(node.inputs) < 2:
        return f"MNN takes {kind} of two or more inputs only"
    if kind in {"ArgMax", "ArgMin"} and node.attributes.get("select_last_index"):
        return f"MNN's {kind} selects the first index only"
    if kind == "BatchNormalization" and node.attributes.get("training_mode"):
        return "MNN takes BatchNormalization for inference only"
    if kind in _SOFTMAXES and node.opset < _FLAT_SOFTMAX_BEFORE and not _single_axis(index, node):
        return f"MNN takes {kind} over one axis, and before opset 13 it flattens all that follow"
    return None


def make_explicit(model: ir.Model) -> bool:
    """Write the defaults that MNN misreads into the model; True when something was written."""
    changed = False
    for node in model.graph:
        if node.op_type in _POOLS and "strides" not in node.attributes:
            kernel = node.attributes["kernel_shape"].as_ints()
            node.attributes.add(ir.AttrInt64s("strides", [1] * len(kernel)))
            changed = True
        if node.op_type in _SOFTMAXES and "axis" not in node.attributes:
            flat = model.opset_imports.get("", _FLAT_SOFTMAX_BEFORE) < _FLAT_SOFTMAX_BEFORE
            node.attributes.add(ir.AttrInt64("axis", 1 if flat else -1))
            changed = True
    return changed


def _dilated(node: NodeInfo) -> bool:
    dilations = node.attributes.get("dilations", ())
    return isinstance(dilations, tuple) and any(d != 1 for d in dilations)


def _single_axis(index: GraphIndex, node: NodeInfo) -> bool:
    spec = index.input_spec(node.index, 0)
    axis = node.attributes.get("axis", 1)
    if spec is None or spec.shape is None or not isinstance(axis, int):
        return False
    following = spec.shape[axis % len(spec.shape) + 1 :] if spec.shape else ()
    return all(d == 1 for d in following)

"""Operators by how they treat the rows of their inputs (`row_independence`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SOFTMAXES = ("Softmax", "LogSoftmax", "Hardmax")
ALONE_FROM = 13  # the opset from which they work along one axis alone
USUAL_AXIS: Mapping[str, int] = {
    **dict.fromkeys((*SOFTMAXES, "LayerNormalization", "RMSNormalization", "TopK"), -1),
    **dict.fromkeys(("ArgMax", "ArgMin"), 0),
}
ALIKE = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Celu Clip Cos Cosh
    Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less
    LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin
    Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
"""
SAMPLE = """
    AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool GlobalMaxPool GroupNormalization
    InstanceNormalization LRN LpPool MaxPool SpaceToDepth
"""
ALONG = """
    ArgMax ArgMin CumSum Hardmax LayerNormalization LogSoftmax ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare RMSNormalization Softmax TopK
"""


def ints_of(attribute: object) -> list[int]:
    """The numbers of an attribute that is one or several."""
    assert isinstance(attribute, int | Iterable), attribute
    return [attribute] if isinstance(attribute, int) else [int(i) for i in attribute]

"""The ONNX operators that ONNX Runtime's CUDA provider takes.

Found by opening ONNX's own node tests with ONNX Runtime 1.31 without fallback to the CPU. An operator
is listed when one of its tests opens. So is one whose tests have only known exceptions (GRU that resets
before its product, OneHot of a float depth). A wrong entry costs one refused candidate, never a wrong
result.
"""

from collections.abc import Mapping

from collage.backends.support.predicates import op_names

ONNX_OPERATORS: frozenset[str] = op_names(
    """
    Abs Add And ArgMax ArgMin Attention AveragePool BatchNormalization Bernoulli Cast CastLike
    Ceil Clip Compress Concat Constant ConstantOfShape Conv ConvTranspose Cos CumSum DeformConv
    DepthToSpace DequantizeLinear Div Dropout Einsum Elu Equal Erf Exp Expand EyeLike Flatten
    Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater
    GreaterOrEqual GridSample HardSigmoid HardSwish Identity If InstanceNormalization IsInf
    IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Loop
    LpNormalization MatMul Max MaxPool Min Mish Mod Mul Neg NegativeLogLikelihoodLoss
    NonMaxSuppression NonZero Not OneHot OptionalHasElement Or PRelu Pad Pow QuantizeLinear
    RMSNormalization RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize
    ReverseSequence RoiAlign RotaryEmbedding Round Scan Scatter ScatterElements ScatterND Selu
    SequenceInsert SequenceMap Shape Shrink Sigmoid Sign Sin Size Slice Softmax
    SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tanh
    TensorScatter ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor
    """
)
# Taken up to the version before this one.
WITHOUT_SINCE: Mapping[str, int] = {
    "Dropout": 22,
    "Elu": 22,
    "EyeLike": 22,
    "InstanceNormalization": 22,
    "MaxPool": 22,
    "Selu": 22,
    "ThresholdedRelu": 22,
}

"""The ONNX operators that OpenVINO takes.

Found by running ONNX's own node tests through OpenVINO 2026.4 on the CPU: an operator is listed when
one of its tests is right, or when only bodies or shapes that depend on values are refused. A wrong
entry costs one refused candidate, never a wrong result.
"""

from __future__ import annotations

from collage.backends.support.predicates import op_names

ONNX_OPERATORS: frozenset[str] = op_names(
    """
    Abs Acos Acosh Add AffineGrid And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool
    BatchNormalization BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Celu
    CenterCropPad Clip Col2Im Compress Concat ConstantOfShape Conv ConvInteger ConvTranspose Cos
    Cosh DFT DepthToSpace DequantizeLinear Div Dropout DynamicQuantizeLinear Einsum Elu Equal
    Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm
    GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GridSample GroupNormalization
    HardSigmoid HardSwish Hardmax Identity If InstanceNormalization IsInf IsNaN LRN LSTM
    LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax Loop LpNormalization LpPool
    MatMul MatMulInteger Max MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul Neg
    NegativeLogLikelihoodLoss NonMaxSuppression NonZero Not Or PRelu Pad Pow QLinearMatMul
    QuantizeLinear RMSNormalization RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum
    ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu
    Reshape Resize ReverseSequence RoiAlign RotaryEmbedding Round Scan Scatter ScatterElements
    ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax SoftmaxCrossEntropyLoss
    Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tan Tanh ThresholdedRelu
    Tile TopK Transpose Trilu Unique Unsqueeze Upsample Where Xor
    """
)

# ONNX Runtime's own operators, of its domain com.microsoft, as optimized and quantized models have
# them: those for which OpenVINO 2026.4 has a conversion rule, found by giving it each of the 136 that
# ONNX Runtime 1.31 knows.
MICROSOFT_OPERATORS: frozenset[str] = frozenset(
    f"com.microsoft::{name}"
    for name in op_names(
        """
    Attention BiasAdd BiasGelu BifurcationDetector DequantizeLinear DynamicQuantizeLSTM
    DynamicQuantizeMatMul EmbedLayerNormalization FastGelu FusedConv FusedGemm FusedMatMul
    GatherBlockQuantized GatherND Gelu GroupNorm GroupQueryAttention MatMulIntegerToFloat
    MatMulNBits MultiHeadAttention Pad QLinearAdd QLinearAveragePool QLinearConcat
    QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere
    QuantizeLinear QuickGelu Range RotaryEmbedding SkipLayerNormalization
    SkipSimplifiedLayerNormalization Trilu
        """
    )
)
OPERATORS = ONNX_OPERATORS | MICROSOFT_OPERATORS

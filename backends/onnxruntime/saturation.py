"""Products of uint8 and int8 that overflow: `-u8s8=exact` keeps ONNX Runtime from it.

On x86 without VNNI its kernels add pairs of such products in 16 bits, which saturates. With `-u8s8=exact` weights are
moved to uint8 when a session opens, and slower kernels compute without an overflow. Other processors compute the same
either way.

Source: ONNX Runtime's `session.x64quantprecision`, in onnxruntime_session_options_config_keys.h.
"""

from __future__ import annotations

from collections.abc import Collection

from collage.backends.options import Option
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.target import Target

EXACT = "exact"
U8S8 = Option(
    "u8s8",
    "fast",
    "Products of uint8 and int8 on x86 without VNNI: fast, but they may overflow, or exact.",
    choices=("fast", EXACT),
    is_later=True,
)
# Without AVX2 other kernels run, which do not overflow.
_KERNELS_OF, _WITHOUT_OVERFLOW = "avx2", {"avx512_vnni", "avx_vnni", "amx_int8"}
# Where an operator has its two factors; those of `_ROUNDS_ITSELF` round their float factor to uint8.
_INTEGER = {
    "QLinearConv": (0, 3),
    "QLinearMatMul": (0, 3),
    "ConvInteger": (0, 1),
    "MatMulInteger": (0, 1),
}
_INTEGER |= {"QGemm": (0, 3), "QAttention": (0, 1), "MatMulIntegerToFloat": (0, 1)}
_ROUNDS_ITSELF = {"DynamicQuantizeMatMul": 1, "DynamicQuantizeLSTM": 1}
_ON_FLOAT = {"Conv", "Gemm", "MatMul"}


def is_exact(target: Target) -> bool:
    """Whether products may not overflow."""
    return target.option(U8S8.name, U8S8.default) == EXACT


def exact_form(target: Target, index: GraphIndex, features: Collection[str]) -> Target | None:
    """The exact form of a target whose products of this model may overflow; None where none may, or one is stated.

    Args:
        target: of ONNX Runtime on its CPU provider.
        index: the model.
        features: the processor's.
    """
    overflows = _KERNELS_OF in features and not _WITHOUT_OVERFLOW & set(features)
    stated = any(name == U8S8.name for name, _ in target.options)
    if not overflows or stated or not any(_may_overflow(index, node) for node in index.nodes):
        return None
    return target.with_options(**{U8S8.name: EXACT})


def _may_overflow(index: GraphIndex, node: NodeInfo) -> bool:
    if node.op_type in _ROUNDS_ITSELF:
        return _dtype(index, node, _ROUNDS_ITSELF[node.op_type]) == "int8"
    if node.op_type in _INTEGER:
        return tuple(_dtype(index, node, i) for i in _INTEGER[node.op_type]) == ("uint8", "int8")
    if node.op_type in _ON_FLOAT and not node.domain:
        return tuple(_rounded_to(index, node, i) for i in (0, 1)) == ("uint8", "int8")
    return False


def _dtype(index: GraphIndex, node: NodeInfo, position: int) -> str:
    spec = index.input_spec(node.index, position)
    return spec.dtype if spec is not None else ""


def _rounded_to(index: GraphIndex, node: NodeInfo, position: int) -> str:
    """The integers that a float factor was, which one kernel computes with; empty where it was none."""
    maker = index.producer.get(node.inputs[position])
    if maker is None or index.nodes[maker].op_type != "DequantizeLinear":
        return ""
    return _dtype(index, index.nodes[maker], 0)

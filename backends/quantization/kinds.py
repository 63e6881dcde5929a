"""Kinds of integers in the file: `-quant=`, what each is good for, and which nodes it takes.

`dynamic_int8` scales activations while the model runs, `static_int8` fixes the scales beforehand, from
samples. The others write the weights of products alone: `weights_int8` with a scale for each channel,
`block_int8` and `block_int4` with one for each block of inputs of a channel. `block_int4_gptq` has the
blocks of `block_int4`, rounded by what products read in samples.

A *quantizable* node becomes an integer kernel; other nodes of the partition stay float, so that a whole
transformer can be one partition. A partition without quantizable nodes is refused: it would be the
float target by another name.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from collage.backends.machine.hardware import hardware
from collage.backends.options import Option
from collage.backends.quantization.calibration import (
    CALIBRATE,
    MINMAX,
    method_of,
    without_calibrate,
)
from collage.backends.quantization.float_nodes import OPTION, kept_nodes, positions_of, refuse_ranges
from collage.backends.quantization.smoothing import SMOOTH, is_smooth, without_smooth
from collage.backends.quantization.static_int8 import WEIGHTED
from collage.backends.support.predicates import is_constant
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.target import Target

DYNAMIC, STATIC, WEIGHTS = "dynamic_int8", "static_int8", "weights_int8"
BLOCK_INT8, BLOCK_INT4, BLOCK_GPTQ = "block_int8", "block_int4", "block_int4_gptq"
BITS = {BLOCK_INT8: 8, BLOCK_INT4: 4, BLOCK_GPTQ: 4}
"""Bits of a weight by kind, for weights in blocks."""
BLOCKS = {BLOCK_INT8: 128, BLOCK_INT4: 32, BLOCK_GPTQ: 32}
"""Weights with one scale; small blocks err less and take longer (docs/results/int8.md)."""
MIXED = (STATIC, WEIGHTS)
"""Kinds that may keep nodes float."""
CALIBRATED = (*MIXED, BLOCK_GPTQ)
"""Kinds that need samples."""
LEAST_OPSET = 13
"""From here on QuantizeLinear and DequantizeLinear have a scale for each channel."""

_NAME = "quant"
_PRODUCTS = ("MatMul", "Gemm")
# Inputs of a product that share a scale where the runtime rounds them (docs/results/int8.md).
_GROUPS = {WEIGHTS: 64, **BLOCKS}
_WITH_VNNI = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"}

_MASKS: WeakKeyDictionary[GraphIndex, dict[str, int]] = WeakKeyDictionary()


def options(*choices: str) -> tuple[Option, ...]:
    """`-quant`, for a backend that takes these kinds, `-float`, `-calibrate` and `-smooth`."""
    quant = Option(
        _NAME,
        "none",
        "Weights of products and convolutions as integers in the file itself (see docs/int8.md).",
        choices=("none", *choices),
    )
    return quant, OPTION, CALIBRATE, SMOOTH


def kind_of(target: Target) -> str | None:
    """The kind of integers of a target, or None."""
    kind = target.option(_NAME, "none")
    return None if kind == "none" else kind


def without_quant(target: Target) -> Target:
    """The float target of the same runtime."""
    plain = without_smooth(without_calibrate(target))
    return Target(plain.backend, tuple(pair for pair in plain.options if pair[0] != _NAME))


def least_opset(kind: str) -> int:
    """The oldest opset that a kind can be written in; 0 for any."""
    return 0 if kind in BITS else LEAST_OPSET


def rounding_group(target: Target) -> int:
    """How many inputs of a product share a scale where the runtime rounds them; 0 where it rounds none.

    That is where only weights are integers in the file.
    """
    return _GROUPS.get(kind_of(target) or "", 0)


def refuse_float(target: Target) -> str | None:
    """Why `-float`, `-calibrate` or `-smooth` makes no sense as it is given, or None."""
    if is_smooth(target) and (kind_of(target) != STATIC or positions_of(target)):
        return f"-smooth moves ranges into weights: it goes with -quant={STATIC}, without -float"
    if method_of(target) != MINMAX and kind_of(target) != STATIC:
        return f"-calibrate finds ranges of activations: it goes with -quant={STATIC}"
    if positions_of(target) and kind_of(target) not in MIXED:
        return f"-float keeps nodes float within int8: it goes with -quant={' or '.join(MIXED)}"
    return refuse_ranges(target)


def numbers(target: Target) -> str:
    """The number format of products and convolutions on a target that quantizes."""
    integers = f"int{BITS.get(kind_of(target) or '', 8)}"
    said = f"{integers} and float" if positions_of(target) else integers
    return f"{said}: weights in the file, products" if rounding_group(target) else said


def sense(kind: str) -> str:
    """For which nodes and hardware a kind pays, and whether this is such hardware."""
    nodes = {
        DYNAMIC: "products with constant weights; convolutions stay float, since they get slower",
        STATIC: "convolutions and products with constant weights",
    }.get(kind, "products with constant weights")
    if kind in BITS:
        return (
            f"pays for {nodes} that are large and have few rows, where reading weights takes the time"
        )
    here = "which this CPU has" if has_dot_product() else "which this CPU has not: 7-bit weights here"
    return f"pays for {nodes}, on CPUs with int8 dot products (VNNI, AMX, NEON), {here}"


def refuse_region(index: GraphIndex, nodes: int, target: Target) -> str | None:
    """Why it makes no sense to quantize these nodes (bitset), or None."""
    kind = kind_of(target)
    if kind is None or nodes & quantizable(index, kind) & ~kept_nodes(target, nodes):
        return None
    if nodes & quantizable(index, kind):
        return "-float keeps all that could be int8 here; use the target without -quant"
    reasons = (refusal(index, node, kind) for node in index.nodes if nodes >> node.index & 1)
    return f"nothing here can be {kind}: {next(reasons)}"


def quantizable(index: GraphIndex, kind: str) -> int:
    """The nodes (bitset) that become integer kernels."""
    known = _MASKS.setdefault(index, {})
    if kind not in known:
        taken = (node.index for node in index.nodes if refusal(index, node, kind) is None)
        known[kind] = sum(1 << i for i in taken)
    return known[kind]


def refusal(index: GraphIndex, node: NodeInfo, kind: str) -> str | None:
    """Why a node cannot become an integer kernel, or None."""
    taken = WEIGHTED if kind == STATIC else _PRODUCTS
    if node.domain or node.op_type not in taken:
        return f"{node.op} is not one of {', '.join(taken)}"
    if node.opset < least_opset(kind):
        return f"the model is of opset {node.opset}, and scales for each channel need {LEAST_OPSET}"
    if not is_constant(index, node, 1):
        return f"{node.op} has no constant weights"
    weight = index.values[node.inputs[1]]
    if weight.dtype != "float32":
        return f"{node.op} has weights of {weight.dtype}, not float32"
    if node.op_type in _PRODUCTS and len(weight.shape or ()) != 2:
        return f"{node.op} has weights of other than two dimensions"
    if node.op_type == "Gemm" and not _is_plain(node):
        return "Gemm transposes its first input or scales its terms"
    return None


def _is_plain(node: NodeInfo) -> bool:
    attributes: dict[str, Any] = {"alpha": 1.0, "beta": 1.0, "transA": 0, **node.attributes}
    return (attributes["alpha"], attributes["beta"], attributes["transA"]) == (1.0, 1.0, 0)


def has_dot_product() -> bool:
    """Whether this CPU adds up products of int8 in 32 bits."""
    return bool(_WITH_VNNI & set(hardware().features))

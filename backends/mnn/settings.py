"""What MNN is told: number formats, tiles, and modes of memory and power.

Traps, each with a test:

* Its Python module takes the modes as numbers and ignores words.
* Converted with integer weights, a convolution or product rounds its inputs as well, but only in the
  low mode of memory; in the others it computes in float.
* The high mode of power binds threads, the calling one included, to the machine's fastest cores,
  whatever cores the process was given. So tuning does not try it.

Source: `getScheduleConfig` in pymnn, `ConvolutionFloatFactory` and `CPURuntime` in MNN 3.6.
"""

from __future__ import annotations

from collage.backends.contract import Arithmetic
from collage.backends.machine.hardware import hardware
from collage.backends.options import Option
from collage.backends.support.predicates import is_constant
from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.target import Target

# MNN's hint WINOGRAD_MEMORY_LEVEL: at 3, its default, tiles are so large that errors reach 1e-3
# (docs/results/precision.md).
_WINOGRAD_LEVEL = 3
_LEVEL_OF = {"exact": 2, "large": 3}
# MNN's hint DYNAMIC_QUANT_OPTIONS: one scale for a whole input takes less time.
_DYNAMIC_QUANT, _ONE_SCALE = 5, 1
_NUMBER_OF = {"normal": 0, "high": 1, "low": 2}  # of both modes
# Modes were once words, which MNN ignores.
_REACHES_MNN = 2
_HALF = "asimdhp"  # as Linux names f16 arithmetic of ARM CPUs
_BITS = {"int8": 8}
_PRODUCTS = ("Gemm", "MatMul")

PRECISION = Option(
    "precision",
    "normal",
    "What it computes in; low may use 16-bit numbers where the CPU has them, int8 rounds weights and inputs.",
    choices=("low", "normal", "high", *_BITS),
)
WINOGRAD = Option(
    "winograd",
    "exact",
    "Tiles of Winograd's algorithm: exact leaves out the largest, whose errors reach 1e-3.",
    choices=("exact", "large"),
)
MEMORY = Option(
    "memory",
    "normal",
    "How much memory kernels may take; high lets more than four threads compute a transposed convolution.",
    choices=("low", "normal", "high"),
    is_later=True,
    tunable=("high",),
    whole_first=True,
    on_trial=True,
    edition=_REACHES_MNN,
)
POWER = Option(
    "power",
    "normal",
    "Which cores threads are bound to, where they differ in speed.",
    choices=("low", "normal", "high"),
    is_later=True,
    edition=_REACHES_MNN,
)


def precision(target: Target) -> str:
    """The precision that MNN knows."""
    given = target.option("precision", "normal")
    return "normal" if given in _BITS else given


def modes(target: Target) -> dict[str, int]:
    """Modes of memory and power by MNN's numbers, where they are not the usual ones."""
    given = {name: target.option(name, "normal") for name in ("memory", "power")}
    if is_integer(target):
        given["memory"] = "low"
    return {name: _NUMBER_OF[mode] for name, mode in given.items() if mode != "normal"}


def hints(target: Target) -> list[tuple[int, int]]:
    """MNN's hints by number, each with its value."""
    tiles = (_WINOGRAD_LEVEL, _LEVEL_OF[target.option("winograd", "exact")])
    return [tiles, (_DYNAMIC_QUANT, _ONE_SCALE)] if is_integer(target) else [tiles]


def is_integer(target: Target) -> bool:
    """Whether weights are integers."""
    return target.option("precision", "normal") in _BITS


def converter_words(target: Target) -> list[str]:
    """What the converter is told beside the files."""
    if not is_integer(target):
        return []
    return ["--weightQuantBits", str(_BITS[target.option("precision", "normal")])]


def arithmetic(target: Target) -> Arithmetic:
    """The number format on this machine."""
    given = target.option("precision", "normal")
    if given in _BITS:
        return Arithmetic(
            given, False, "pays for convolutions that are not depthwise, and for products"
        )
    if given != "low":
        return Arithmetic()
    if _HALF not in hardware().features:
        return Arithmetic("f32", True, "low is f16 on ARM CPUs that have it; here it changes nothing")
    return Arithmetic("f16", False, "pays for convolutions and products, on ARM CPUs with f16")


def refuse_target(target: Target) -> str | None:
    """Why options contradict each other, or None."""
    if is_integer(target) and target.option("memory", "normal") != "normal":
        return "-precision=int8 decides the mode of memory; leave -memory out"
    return None


def refuse_region(index: GraphIndex, nodes: int, target: Target) -> str | None:
    """Why it makes no sense to round these nodes (bitset), or None."""
    if not is_integer(target) or any(_has_weights(index, index.nodes[i]) for i in bits(nodes)):
        return None
    return "nothing here has weights that could be integers; use the target without -precision=int8"


def _has_weights(index: GraphIndex, node: NodeInfo) -> bool:
    if node.domain or not (node.op_type in _PRODUCTS or node.op_type == "Conv"):
        return False
    if not is_constant(index, node, 1):
        return False
    shape = index.values[node.inputs[1]].shape or ()
    return node.attributes.get("group", 1) == 1 or shape[1:2] != (1,)

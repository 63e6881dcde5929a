"""Options of all targets on CUDA."""

from __future__ import annotations

from collage.backends.contract import Arithmetic
from collage.backends.options import Option
from collage.partitioner.target import Target

_OFF_ON = ("off", "on")
TF32 = Option(
    "tf32",
    "off",
    "On CUDA: products and convolutions of float32 in TF32.",
    choices=_OFF_ON,
    is_later=True,
)
GRAPHS = Option(
    "graphs",
    "off",
    "On CUDA: kernels recorded once and launched as one CUDA graph.",
    choices=_OFF_ON,
    is_later=True,
)


def is_on(target: Target, option: Option) -> bool:
    """Whether a target asks for one of these."""
    return target.option(option.name, option.default) == "on"


def arithmetic(target: Target) -> Arithmetic:
    """The number format of a target with `TF32` among its options."""
    if not is_on(target, TF32):
        return Arithmetic()
    return Arithmetic(
        "tf32", False, "convolutions and products on GPUs with tensor cores; ten bits of mantissa"
    )

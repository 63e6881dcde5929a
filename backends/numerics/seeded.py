"""Seeded inputs, where the user gives none: the same to the bit on every machine."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import ml_dtypes  # noqa: F401  (registers bfloat16, float8 … with numpy)
import numpy as np

from collage.partitioner.errors import ModelError
from collage.partitioner.tensor import TensorSpec

Array = np.ndarray

EDITION = 3
"""Raised when the values of a seed change; an older artifact is verified with those that it was made with."""
_KNOWS_NAMES, _KNOWS_NUMBERED, _KNOWS_MORE = 1, 2, 3
# Integers without a hint are small: they may be ids for a table, steps or lengths.
ID_BOUND = 8
# Factors that a model multiplies or divides by: near 0 a speech model answers with minutes of sound.
_FACTORS = ("speed", "tempo", "pace", "speaking_rate", "length_scale", "temperature")
# Masks of PyTorch in which true is what is left out.
_PADDING = re.compile(r"pad(ding)?_?mask$")
_POSITIONS = re.compile(r"(^|_)position_ids$|^(positions|pos_ids|cache_position|input_pos)$")
# How much of a tensor counts: of none of it, means are NaN.
_LENGTHS = re.compile(r"(^|_)(length|len|lengths|lens)$")
# Exporters put numbers behind names: `mask.1`, `mask:0`.
_NUMBERS = re.compile(r"([.:]\d+)+$")
_TO_UNIT_VARIANCE = 1.7320508075688772  # four uniform numbers have a variance of 4/12


def seeded_inputs(
    specs: Sequence[TensorSpec],
    seed: int,
    bounds: Mapping[str, int] | None = None,
    edition: int = EDITION,
) -> dict[str, Array]:
    """Inputs for any dtype, the same to the bit for one seed on every machine.

    Floats are standard normal; integers are small ids from 0; booleans are mixed; text is short. Inputs with a usual
    name have usual values: `…mask` is ones and `…padding_mask` zeros, `position_ids` count up, `…lengths` are at least 1,
    `past…` is small, `speed` is 1.

    Args:
        specs: inputs with static shapes.
        bounds: for integer inputs, the length of the table that they index.
        edition: of the values. In 0 no name is known, in 1 some without a number behind them, in 2 with one too.

    Raises:
        ModelError: an input's type or shape is not known.
    """
    values = {}
    for position, spec in enumerate(specs):
        if not spec.is_static:
            raise ModelError(
                f"input {spec.name!r} has no static shape or type ({spec.dtype}, {spec.shape}); "
                "bind its free dimensions, or give sample inputs"
            )
        bits = np.random.PCG64([seed, position])
        bound = (bounds or {}).get(spec.name, ID_BOUND)
        # Of a scalar numpy makes a number, which is no array.
        values[spec.name] = np.asarray(_random(spec, bits, max(1, bound)))
        if edition >= _KNOWS_NAMES:
            name = _NUMBERS.sub("", spec.name) if edition >= _KNOWS_NUMBERED else spec.name
            named = _as_named(name, values[spec.name], edition >= _KNOWS_MORE)
            values[spec.name] = np.asarray(named)
    return values


def _as_named(name: str, drawn: Array, more: bool) -> Array:
    """What an input of this name usually holds: seeded masks of 0 and 1 make transformers answer NaN."""
    last = name.lower().rpartition("/")[2].rpartition(".")[2]
    if drawn.dtype.kind not in "biuf" or not drawn.size:
        return drawn
    if more and drawn.dtype.kind in "biu" and _PADDING.search(last):
        return np.zeros_like(drawn)
    if last.endswith("mask"):
        return np.ones_like(drawn)
    if last in _FACTORS and drawn.dtype.kind == "f" and drawn.size == 1:
        return np.ones_like(drawn)
    if more and drawn.dtype.kind in "iu" and _LENGTHS.search(last):
        return np.asarray(np.maximum(drawn, 1))
    counts = _POSITIONS.search(last) if more else last in ("position_ids", "positions")
    if counts and drawn.dtype.kind in "iu" and drawn.ndim:
        counted = np.arange(drawn.shape[-1], dtype=drawn.dtype)
        return np.ascontiguousarray(np.broadcast_to(counted, drawn.shape))
    if (
        any(part.startswith("past") for part in name.lower().replace("/", ".").split("."))
        and drawn.dtype.kind == "f"
    ):
        return np.asarray(drawn * drawn.dtype.type(0.125), dtype=drawn.dtype)
    return drawn


def _random(spec: TensorSpec, bits: np.random.PCG64, bound: int) -> Array:
    # numpy promises only the raw bits never to change; every step from them is exact.
    shape = spec.static_shape
    raw = bits.random_raw(math.prod(shape)).reshape(shape)
    if spec.dtype == "object":
        return np.array([f"word{n % bound}" for n in raw.reshape(-1)], dtype=object).reshape(shape)
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return (raw & 1).astype(bool)
    if dtype.kind in "iu":
        return (raw % np.uint64(min(bound, int(np.iinfo(dtype).max) + 1))).astype(dtype)
    if dtype.kind == "c":
        return np.asarray(_normal(raw) + 1j * _normal(raw[::-1]), dtype=dtype)
    return _normal(raw).astype(dtype)


def _normal(raw: Array) -> Array:
    """Nearly standard normal float32 from 64 random bits each: the sum of four uniform numbers."""
    total = np.zeros(raw.shape, dtype=np.int64)
    for shift in (0, 16, 32, 48):
        total += ((raw >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64)
    centered = (total - 2 * 0xFFFF).astype(np.float64)
    return np.asarray(centered / 65536 * _TO_UNIT_VARIANCE, dtype=np.float32)

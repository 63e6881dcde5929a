"""How far outputs are from the reference.

Terms: an *error* is one number per pair of arrays, 0 for equal; that of several outputs is the worst.
Metrics:

* `max`: largest absolute difference over the largest absolute reference value.
* `l2`: Euclidean norm of the difference over that of the reference.
* `cosine`: one minus the cosine of the angle between the two.
* `top1`: share of rows (last axis) whose largest element is at another place; of integers, truth values
  and text, the share that differs.

Invariants: only elements that are finite in the reference are compared. Where it is infinite any number but one of the
other infinity is right, and where it is NaN all is. NaN or infinities elsewhere, another shape or another dtype are an
infinite error. Integers, booleans and text must be equal but for `top1`; 8-bit integers are
quantized numbers and are measured like floats. Any value within the bounds of a `Ranged` element is
right.

Where somebody else judges results in the end, differences are *counted*: of integers, booleans and text the share that
differs is the error, and a value of another shape of the same rank, as of a detector that finds one box more, errs by 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import ml_dtypes  # noqa: F401  (registers bfloat16, float8 … with numpy)
import numpy as np

from collage.partitioner.errors import BadInputError

Array = np.ndarray
Metric = Literal["max", "l2", "cosine", "top1"]
METRICS: tuple[str, ...] = get_args(Metric)

NO_TOLERANCE = 1.0
"""A tolerance that bounds nothing, since a metric of the task or a check of the caller's decides."""

ROUNDED = 4e-7
"""By so much rounding moves a single-precision value of a function whose range is 1."""

# Bounds in single precision are as far from a value, up to this.
_ALIKE = 1.01

# Where the reference is zero everywhere, only such differences are small.
_SMALLEST_SCALE = 1e-12


@dataclass(frozen=True, eq=False)
class Ranged:
    """A reference value with bounds for elements that rounding decides: numeric ties (docs/numeric-ties.md)."""

    value: Array  # the reference
    # the smallest right value of each element, in the same shape and type; `value` where there is no
    # tie
    low: Array
    high: Array  # the largest

    @property
    def undecided(self) -> Array:
        """Which elements are numeric ties."""
        return np.asarray(self.low != self.high)

    @property
    def rounding(self) -> float:
        """By how much rounding moves each element alike, up or down; 0 where the bounds are others."""
        if self.value.dtype != np.float32 or not self.value.size:
            return 0.0
        value, low, high = (a.astype(np.float64) for a in (self.value, self.low, self.high))
        with np.errstate(invalid="ignore"):  # infinities have no difference
            moves = np.stack((value - low, high - value))
        least, most = float(moves.min()), float(moves.max())
        return most if 0.0 < most <= _ALIKE * least and math.isfinite(most) else 0.0

    def judged(self, actual: Array) -> Array:
        """Another runtime's value, in which a tie differs only by what lies beyond its bounds."""
        if actual.shape != self.value.shape or actual.dtype != self.value.dtype:
            return actual
        where = self.undecided
        counted = np.array(actual)
        if is_measured(actual.dtype):
            arrays = (actual, self.value, self.low, self.high)
            own, value, low, high = (a[where].astype(np.float64) for a in arrays)
            bounded = np.clip(own, low, high)
            # Infinities have no difference.
            beyond = np.subtract(own, bounded, out=np.zeros_like(own), where=own != bounded)
            counted[where] = np.where(np.isfinite(value) | (beyond == 0), value + beyond, own)
        else:
            inside = where & (self.low <= actual) & (actual <= self.high)
            counted[inside] = self.value[inside]
        return counted


Expected = Array | Ranged
"""A reference value."""


@dataclass(frozen=True)
class Comparison:
    """The error of some outputs."""

    error: float  # of the worst output
    output: int = 0  # the position of the worst output
    reason: str = ""  # why the error is infinite, else empty


def is_judged(tolerance: float) -> bool:
    """Whether somebody else judges results, so that differences are counted."""
    return tolerance >= NO_TOLERANCE


def output_error(
    metric: str, actual: Sequence[Array], expected: Sequence[Expected], counted: bool = False
) -> float:
    """The error of the worst output; infinite where outputs cannot be compared."""
    return compare_outputs(metric, actual, expected, counted).error


def compare_outputs(
    metric: str, actual: Sequence[Array], expected: Sequence[Expected], counted: bool = False
) -> Comparison:
    """The error of the worst output, and which one it is.

    Args:
        counted: whether differences are counted.
    """
    _check_metric(metric)
    if len(actual) != len(expected):
        return Comparison(math.inf, 0, f"{len(actual)} outputs instead of {len(expected)}")
    worst = Comparison(0.0)
    for position, (made, wanted) in enumerate(zip(actual, expected, strict=True)):
        array = np.asarray(made)
        if isinstance(wanted, Ranged):
            array, wanted = wanted.judged(array), wanted.value
        error, reason = _error(metric, array, np.asarray(wanted), counted)
        if not error <= worst.error:
            worst = Comparison(error, position, reason)
    return worst


def _error(metric: str, actual: Array, expected: Array, counted: bool) -> tuple[float, str]:
    if actual.dtype != expected.dtype:
        return math.inf, f"{actual.dtype} instead of {expected.dtype}"
    if actual.shape != expected.shape:
        if counted and actual.ndim == expected.ndim:
            return 1.0, ""
        return math.inf, f"shape {actual.shape} instead of {expected.shape}"
    if expected.size == 0:
        return 0.0, ""
    if not is_measured(expected.dtype):
        wrong = int(np.count_nonzero(actual != expected))
        if wrong == 0 or counted or metric == "top1":
            return wrong / expected.size, ""
        return math.inf, f"{wrong} of {expected.size} values differ"
    a, e = _as_real(actual), _as_real(expected)
    finite = np.isfinite(e)
    if not finite.all() or not np.isfinite(a).all():
        if is_beyond(a, e).any():
            return math.inf, "it is NaN or infinite where the reference is not"
        if metric == "top1":  # rows must keep their length
            a, e = np.where(finite, a, -np.inf), np.where(finite, e, -np.inf)
        else:
            a, e = a[finite], e[finite]
    return (_METRIC[metric](a, e) if e.size else 0.0), ""


def is_beyond(actual: Array, expected: Array) -> Array:
    """Which elements are NaN or infinite where real numbers of the reference are not so."""
    infinite = np.isinf(actual) & (np.isfinite(expected) | (actual == -expected))
    return np.asarray(infinite | (np.isnan(actual) & ~np.isnan(expected)))


def is_measured(dtype: np.dtype) -> bool:
    """Whether values of a type differ by more or less; those of others are equal or not."""
    # ml_dtypes' floats are of kind "V" for numpy.
    return dtype.kind in "fcV" or (dtype.kind in "iu" and dtype.itemsize == 1)


def _as_real(array: Array) -> Array:
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], axis=-1).astype(np.float64)
    return array.astype(np.float64 if array.dtype.itemsize == 8 else np.float32, copy=False)


def _max(a: Array, e: Array) -> float:
    # Not in place, not in float32's own range: a difference of two large numbers may overflow it.
    difference = float(np.max(np.abs(a.astype(np.float64) - e)))
    return difference / max(float(np.max(np.abs(e))), _SMALLEST_SCALE)


def _l2(a: Array, e: Array) -> float:
    difference = float(np.linalg.norm((a.astype(np.float64) - e).reshape(-1)))
    return difference / max(float(np.linalg.norm(e.astype(np.float64).reshape(-1))), _SMALLEST_SCALE)


def _cosine(a: Array, e: Array) -> float:
    x, y = a.astype(np.float64).reshape(-1), e.astype(np.float64).reshape(-1)
    lengths = float(np.linalg.norm(x)) * float(np.linalg.norm(y))
    if lengths <= _SMALLEST_SCALE**2:
        return 0.0 if float(np.max(np.abs(x - y))) <= _SMALLEST_SCALE else 1.0
    return max(0.0, 1.0 - float(x @ y) / lengths)


def _top1(a: Array, e: Array) -> float:
    rows = (-1, a.shape[-1] if a.ndim else 1)
    return float(np.mean(a.reshape(rows).argmax(axis=1) != e.reshape(rows).argmax(axis=1)))


_METRIC = {"max": _max, "l2": _l2, "cosine": _cosine, "top1": _top1}


def _check_metric(metric: str) -> None:
    if metric not in METRICS:
        raise BadInputError(f"unknown error metric {metric!r}; known are {', '.join(METRICS)}")

"""Ranges of activations from samples: `-calibrate=` beside `-quant=static_int8`.

`minmax` covers every value that was seen. The others cut rare ones off, so that the rest has finer
steps: `percentile` the outermost 0.01 %, `entropy` where the information lost is least, `mse` where the
squared error of rounding and cutting is least. `onnxruntime.quantization` collects the values, and finds
the first three.

Source: Migacz 2017, "8-bit Inference with TensorRT", for `entropy`; Banner et al. 2019, "Post training
4-bit quantization", for `mse`, here by trying ranges.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collage.backends.options import Option
from collage.partitioner.target import Target

Array = np.ndarray

_NAME, MINMAX = "calibrate", "minmax"
_PERCENTILE, _ENTROPY, _MSE = "percentile", "entropy", "mse"
METHODS = (MINMAX, _PERCENTILE, _ENTROPY, _MSE)

CALIBRATE = Option(
    _NAME,
    MINMAX,
    "How -quant=static_int8 finds ranges of activations (see docs/int8.md).",
    choices=METHODS,
)

_PERCENT = 99.99
_BINS, _QUANTIZED_BINS = 2048, 128
# Of `entropy`, whose time grows with their square.
_ENTROPY_BINS = 512
_STEPS = 255
# Shares of the range of all values that `mse` tries.
_SHARES = np.linspace(0.2, 1.0, 41)


def method_of(target: Target) -> str:
    """How a target finds ranges."""
    return target.option(_NAME, MINMAX)


def without_calibrate(target: Target) -> Target:
    """The same target without the option."""
    return Target(target.backend, tuple(pair for pair in target.options if pair[0] != _NAME))


def ranges_of(
    source: Path, samples: Sequence[dict[str, Array]], operators: Sequence[str], method: str
) -> Any:
    """The range of each tensor that operators of these types read or make.

    Args:
        source: the float model; a temporary file lies beside it.
        samples: every input by name.
        operators: types.
        method: one of `METHODS`.

    Returns:
        `onnxruntime.quantization.calibrate.TensorsData`.
    """
    from onnxruntime.quantization.calibrate import (
        CalibrationMethod,
        TensorsData,
        create_calibrator,
    )

    augmented = source.with_name("augmented.onnx")
    kind = CalibrationMethod.MinMax if method == MINMAX else CalibrationMethod.Percentile
    extra = {} if method == MINMAX else {"symmetric": False, "num_bins": _BINS, "percentile": _PERCENT}
    calibrator = create_calibrator(
        source, operators, str(augmented), calibrate_method=kind, extra_options=extra
    )
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does
        if method == MINMAX:
            calibrator.collect_data(_Reader(samples))
        for sample in samples if method != MINMAX else ():
            calibrator.collect_data(_Reader([sample]))  # all at once it keeps every value
        if method in (MINMAX, _PERCENTILE):
            found = {n: (d.lowest, d.highest) for n, d in calibrator.compute_data().items()}
        elif method == _ENTROPY:
            collector = calibrator.collector
            found = {
                name: collector.get_entropy_threshold(_coarse(*histogram), _QUANTIZED_BINS)
                for name, histogram in collector.histogram_dict.items()
            }
        else:
            histograms = calibrator.collector.histogram_dict.items()
            found = {name: least_squares(*histogram[:4]) for name, histogram in histograms}
    augmented.unlink()
    return TensorsData(CalibrationMethod.MinMax, found)


def _coarse(counts: Array, edges: Array, *rest: Array) -> tuple[Array, ...]:
    """The histogram with few bins; the collector adds bins where a later sample has larger values."""
    middles = (edges[:-1] + edges[1:]) / 2
    found, ends = np.histogram(
        middles, _ENTROPY_BINS, range=(float(edges[0]), float(edges[-1]) or 1.0), weights=counts
    )
    return np.rint(found).astype(np.int64), ends.astype(edges.dtype), *rest


def least_squares(counts: Array, edges: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """The range with the least squared error of rounding to 8 bits what is inside, and cutting off the rest.

    Args:
        counts: of a histogram, (bins,).
        edges: of its bins, (bins + 1,).
        low: the smallest value.
        high: the largest.
    """
    middles = (edges[:-1] + edges[1:]) / 2
    # Zero is always in the range of an integer tensor.
    ends = np.stack([_SHARES * min(float(low), 0.0), _SHARES * max(float(high), 0.0)], axis=1)
    cut = np.clip(middles[None, :], ends[:, :1], ends[:, 1:]) - middles[None, :]
    step = (ends[:, 1] - ends[:, 0]) / _STEPS
    inside = cut == 0
    errors = ((cut**2 + inside * (step**2 / 12)[:, None]) * counts[None, :]).sum(axis=1)
    best = ends[int(errors.argmin())]
    return np.array(best[0], edges.dtype), np.array(best[1], edges.dtype)


class _Reader:
    """Samples as `onnxruntime.quantization` wants them: one at a time, then None."""

    def __init__(self, samples: Sequence[dict[str, Array]]) -> None:
        self._left: Iterator[dict[str, Array]] = iter(samples)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._left, None)

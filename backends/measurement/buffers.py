"""Buffers of a child's runs: aligned as the executor has them, and poisoned before a run that is verified."""

from __future__ import annotations

import numpy as np

from collage.partitioner.tensor import TensorSpec

Array = np.ndarray

_ALIGNMENT = 64


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """A C-contiguous array at a cache line's border, as the executor places them."""
    if dtype.hasobject:
        return np.empty(shape, dtype=dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.zeros(size + _ALIGNMENT, dtype=np.uint8)
    offset = -raw.ctypes.data % _ALIGNMENT
    return raw[offset : offset + size].view(dtype).reshape(shape)


def buffer_like(value: Array) -> Array:
    """A buffer with these values."""
    buffer = aligned(value.shape, value.dtype)
    np.copyto(buffer, value)
    return buffer


def output_buffer(spec: TensorSpec) -> Array | None:
    """An output's buffer; None where only the run knows its shape."""
    return aligned(spec.static_shape, np.dtype(spec.dtype)) if spec.is_static else None


def poison(output: Array | None) -> None:
    """Fill with what no kernel computes, so that an output which is never written is seen."""
    if output is None or output.size == 0:
        return
    if output.dtype == object:
        output[...] = "not written"
    else:
        output.reshape(-1).view(np.uint8)[...] = 0xFF  # NaN for floats, -1 for integers

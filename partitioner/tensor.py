"""The shape and type of a value that crosses the border of a sub-graph."""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes  # noqa: F401  (registers bfloat16, float8 … with numpy)
import numpy as np


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor."""

    name: str  # the ONNX value's name
    # a numpy dtype name, e.g. `float32`, `bfloat16`, `int64`, `bool`; `object` for strings; `unknown`
    # where shape inference found none (sequences, maps).
    dtype: str
    # dimensions, None standing for one that is known only when the model runs; None for an unknown rank
    shape: tuple[int | None, ...] | None

    @property
    def is_static(self) -> bool:
        """True when type and every dimension are known."""
        return self.dtype != "unknown" and self.shape is not None and None not in self.shape

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape where every dimension is known."""
        if self.shape is None or None in self.shape:
            raise ValueError(f"{self.name} has no static shape: {self.shape}")
        return tuple(d for d in self.shape if d is not None)

    @property
    def size_bytes(self) -> int:
        """Size in bytes; 0 where it is not known before the model runs."""
        if not self.is_static:
            return 0
        return math.prod(self.static_shape) * np.dtype(self.dtype).itemsize

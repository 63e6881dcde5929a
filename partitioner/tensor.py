"""The shape and type of a value that crosses the border of a sub-graph."""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes  # noqa: F401  (registers bfloat16, float8 … with numpy)
import numpy as np


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor.

    Args:
        name: the ONNX value's name.
        dtype: a numpy dtype name, e.g. `float32`, `bfloat16`, `int64`, `bool`; `object` for strings.
        shape: dimensions; None stands for one that is known only when the model runs.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    @property
    def is_static(self) -> bool:
        """True when every dimension is known."""
        return None not in self.shape

    @property
    def size_bytes(self) -> int:
        """Size in bytes, unknown dimensions counted as one."""
        return math.prod(1 if d is None else d for d in self.shape) * np.dtype(self.dtype).itemsize

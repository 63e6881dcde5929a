"""The shape and type of a value that crosses the border of a sub-graph."""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes  # noqa: F401  (registers bfloat16, float8 … with numpy)
import numpy as np

# Types whose elements are smaller than a byte.
_PACKED = frozenset(
    {
        *("int2", "uint2", "int4", "uint4"),
        *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"),
    }
)


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
    def is_packed(self) -> bool:
        """True when its elements are smaller than a byte: runtimes hand these to nobody."""
        return self.dtype in _PACKED

    @property
    def is_comparable(self) -> bool:
        """True when the reference can give it as an array: it is neither text, nor packed, nor of unknown type."""
        return self.dtype not in ("unknown", "object") and not self.is_packed

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

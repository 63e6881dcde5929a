"""The protocol's names of tensor types, and what they are in ONNX and in numpy.

Source: Open Inference Protocol, “Tensor Data Types”; BF16 from Triton's binary tensor extension.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

BYTES = "BYTES"
# Datatype → numpy's type. Text is an array of objects.
NUMPY: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    **{
        f"{sign}INT{bits}": np.dtype(f"{sign}int{bits}".lower())
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
    "FP16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    BYTES: np.dtype(object),
}
_OF_ONNX = {"float": "FP32", "double": "FP64", "string": BYTES}
_OF_NUMPY = {dtype.name: name for name, dtype in NUMPY.items()}


def datatype_of(onnx_type: str) -> str | None:
    """The protocol's name for a type as ONNX Runtime writes it, `tensor(float)`; None where it has none."""
    inner = onnx_type.removeprefix("tensor(").removesuffix(")")
    return _OF_ONNX.get(inner) or _OF_NUMPY.get(inner)

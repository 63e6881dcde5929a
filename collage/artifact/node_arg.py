"""Inputs and outputs of a session, as ONNX Runtime describes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.partitioner.errors import BadInputError
from collage.partitioner.tensor import TensorSpec

_ONNX_TYPES = {"float32": "float", "float64": "double", "object": "string"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output as ONNX Runtime describes it: `name`, `shape`, `type` as `tensor(float)`."""

    name: str
    shape: tuple[int | str | None, ...] | None
    type: str

    @classmethod
    def of(cls, spec: TensorSpec) -> NodeArg:
        return cls(spec.name, spec.shape, f"tensor({_ONNX_TYPES.get(spec.dtype, spec.dtype)})")


def check_input(name: str, value: object, dtype: np.dtype[Any], shape: tuple[int, ...] | None) -> None:
    """Refuse a value that is not an array of an input's type and shape.

    Raises:
        BadInputError: it is of another kind, type or shape.
    """
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        found = type(value).__name__
        raise BadInputError(f"input {name!r} must be a numpy array of {dtype.name}, not {found}")
    if value.dtype.name != dtype.name:  # of another byte order it is the same
        raise BadInputError(
            f"input {name!r} must be a numpy array of {dtype.name}, not {value.dtype.name}"
        )
    if shape is not None and value.shape != shape:
        raise BadInputError(f"input {name!r} must have shape {shape}, not {value.shape}")

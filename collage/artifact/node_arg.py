"""Inputs and outputs of a session, as ONNX Runtime describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.partitioner.errors import BadInputError
from collage.partitioner.tensor import TensorSpec

# By name an input's type, and its shape where that is fixed.
Wanted = Mapping[str, tuple[np.dtype[Any], tuple[int | None, ...] | None]]
_ONNX_TYPES = {"float32": "float", "float64": "double", "object": "string"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output as ONNX Runtime describes it: `name`, `shape`, `type` as `tensor(float)`."""

    name: str
    shape: tuple[int | str | None, ...] | None
    type: str

    @classmethod
    def of(cls, spec: TensorSpec, any_rows: bool = False) -> NodeArg:
        """An input or output as its spec says it; `any_rows` leaves the first dimension free."""
        shape = (None, *spec.shape[1:]) if any_rows and spec.shape else spec.shape
        return cls(spec.name, shape, f"tensor({_ONNX_TYPES.get(spec.dtype, spec.dtype)})")


def check_feed(feed: Mapping[str, np.ndarray], wanted: Wanted, rows: int = 1) -> None:
    """Refuse a feed that is not of the inputs' names, types and shapes.

    Args:
        feed: as the caller has it.
        wanted: by name the type and the shape, None where that is free; a first dimension of None is the same for all
            inputs.
        rows: the most that such a dimension may have.

    Raises:
        BadInputError: it is not.
    """
    if feed.keys() != wanted.keys():
        known = wanted.keys()
        missing, unknown = sorted(known - feed.keys()), sorted(feed.keys() - known)
        raise BadInputError(f"inputs missing: {missing or 'none'}, unknown: {unknown or 'none'}")
    for name, (dtype, shape) in wanted.items():
        value = feed[name]
        if type(value) is np.ndarray and value.dtype == dtype and shape in (None, value.shape):
            continue
        if shape is not None and shape[:1] == (None,):
            check_input(name, value, dtype, None)
            given = np.shape(value)
            if len(given) != len(shape) or given[1:] != shape[1:] or not 1 <= given[0] <= rows:
                raise BadInputError(
                    f"input {name!r} must have shape {shape} with 1 to {rows} rows, not {given}"
                )
        else:
            check_input(name, value, dtype, shape)
    if rows > 1 and len({len(value) for value in feed.values()}) > 1:
        counts = {name: len(value) for name, value in feed.items()}
        raise BadInputError(f"inputs must have the same number of rows, not {counts}")


def check_input(
    name: str, value: object, dtype: np.dtype[Any], shape: tuple[int | None, ...] | None
) -> None:
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

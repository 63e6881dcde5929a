"""What a session says of its model, as ONNX Runtime says it: inputs, outputs and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collage.partitioner.emit.metadata import metadata_of
from collage.partitioner.errors import BadInputError
from collage.partitioner.tensor import TensorSpec
from collage.partitioner.wire_format import METADATA_PREFIX

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


@dataclass(frozen=True)
class ModelMeta:
    """What the author of a model says of it."""

    custom_metadata_map: Mapping[str, str]

    @classmethod
    def of(cls, path: Path) -> ModelMeta:
        """The metadata of an artifact, without what this project wrote; empty where there is no such file."""
        found = metadata_of(path) if path.is_file() else {}
        return cls({k: v for k, v in found.items() if not k.startswith(METADATA_PREFIX)})


def fixed(spec: TensorSpec) -> tuple[int, ...] | None:
    """The shape of a tensor; None where a dimension is free."""
    return spec.static_shape if spec.is_static else None


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
    is_text = dtype.hasobject and value.dtype.kind == "U"
    if not is_text and value.dtype.name != dtype.name:  # of another byte order it is the same
        raise BadInputError(
            f"input {name!r} must be a numpy array of {dtype.name}, not {value.dtype.name}"
        )
    if shape is not None and value.shape != shape:
        raise BadInputError(f"input {name!r} must have shape {shape}, not {value.shape}")

"""Sample inputs that a user gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from collage.partitioner.errors import BadInputError
from collage.partitioner.tensor import TensorSpec


def read_samples(
    path: Path, specs: Sequence[TensorSpec], ignored: Callable[[str], bool] | None = None
) -> list[dict[str, np.ndarray]]:
    """Sample inputs from an .npz file.

    The file holds each input by name: of the input's own shape (one sample), or with one more leading
    axis.

    Args:
        path: the file.
        specs: of the inputs.
        ignored: says which other arrays do not count; None where there may be none.

    Raises:
        BadInputError: an input is missing, unknown, or of another type or shape.
    """
    wanted = {spec.name: spec for spec in specs}
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {
                name: _text_as_objects(stored[name])
                for name in stored.files
                if name in wanted or ignored is None or not ignored(name)
            }
    except (OSError, ValueError) as error:
        raise BadInputError(f"inputs file {str(path)!r} cannot be read as .npz: {error}") from None
    if arrays.keys() != wanted.keys():
        too_many = arrays.keys() > wanted.keys()
        hint = "; leave out the others (an input with a default in the file is a weight)"
        raise BadInputError(
            f"inputs file {str(path)!r} holds {sorted(arrays)}, but the model takes {sorted(wanted)}"
            f"{hint if too_many else ''}"
        )
    counts = {_sample_count(array, wanted[name]) for name, array in arrays.items()}
    if len(counts) != 1:
        raise BadInputError(f"inputs file {str(path)!r} holds different numbers of samples per input")
    (count,) = counts
    if count is None:
        return [arrays]
    # Of a row of scalars numpy would give its own scalar types.
    return [{name: np.asarray(array[i]) for name, array in arrays.items()} for i in range(count)]


def _text_as_objects(array: np.ndarray) -> np.ndarray:
    """Text as models have it; .npz files without pickle hold it as characters of one width."""
    return array.astype(object) if array.dtype.kind == "U" else array


def _sample_count(array: np.ndarray, spec: TensorSpec) -> int | None:
    """None for one sample without a leading axis, else how many."""
    if array.dtype.name != spec.dtype:
        wanted = "text (an array of str)" if spec.dtype == "object" else spec.dtype
        raise BadInputError(f"input {spec.name!r} must be {wanted}, not {array.dtype.name}")
    wanted_shape = spec.shape or ()
    if _fits(array.shape, wanted_shape):
        return None
    if _fits(array.shape[1:], wanted_shape) and array.ndim and array.shape[0] > 0:
        return int(array.shape[0])
    shown = str(wanted_shape).replace("None", "any")
    raise BadInputError(
        f"input {spec.name!r} must have shape {shown} or (samples, *{shown}), not {array.shape}"
    )


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        w in (None, size) for size, w in zip(shape, wanted, strict=True)
    )

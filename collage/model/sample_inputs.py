"""Sample inputs that a user gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from collage.partitioner.errors import BadInputError
from collage.partitioner.tensor import TensorSpec
from collage.shapes.sample_shapes import in_group, sample_files


def read_samples(
    path: Path, specs: Sequence[TensorSpec], ignored: Callable[[str], bool] | None = None
) -> list[dict[str, np.ndarray]]:
    """Sample inputs from .npz files.

    A file holds each input by name: of the input's own shape (one sample), or with one more leading axis. Where
    sizes differ, it holds several such groups: `first/x`, `second/x`; or a folder holds a file for each.

    Args:
        path: the file, or a folder with files.
        specs: of the inputs; where their dimensions are free, samples of any size are taken.
        ignored: says which other arrays do not count; None where there may be none.

    Raises:
        BadInputError: an input is missing, unknown, or of another type or shape.
    """
    wanted = {spec.name: spec for spec in specs}
    found: list[dict[str, np.ndarray]] = []
    for file in sample_files(path):
        try:
            with np.load(file, allow_pickle=False) as stored:
                names = [
                    n for n in stored.files if in_group(n, wanted)[1] or not (ignored and ignored(n))
                ]
                groups: dict[str, dict[str, np.ndarray]] = {}
                for name in names:
                    group, own = in_group(name, wanted)
                    array = _as_models_have_it(stored[name], wanted.get(own))
                    groups.setdefault(group, {})[own or name] = array
        except (OSError, ValueError) as error:
            raise BadInputError(f"inputs file {str(file)!r} cannot be read as .npz: {error}") from None
        for group, arrays in (groups or {"": {}}).items():
            found += _separate(f"{str(file)!r}" + f", group {group!r}" * bool(group), arrays, wanted)
    return found


def _separate(
    where: str, arrays: Mapping[str, np.ndarray], wanted: Mapping[str, TensorSpec]
) -> list[dict[str, np.ndarray]]:
    """The samples of one group."""
    if arrays.keys() != wanted.keys():
        too_many = arrays.keys() > wanted.keys()
        hint = "; leave out the others (an input with a default in the file is a weight)"
        raise BadInputError(
            f"inputs file {where} holds {sorted(arrays)}, but the model takes {sorted(wanted)}"
            f"{hint if too_many else ''}"
        )
    counts = {_sample_count(array, wanted[name]) for name, array in arrays.items()}
    if len(counts) != 1:
        raise BadInputError(f"inputs file {where} holds different numbers of samples per input")
    (count,) = counts
    if count is None:
        return [dict(arrays)]
    # Of a row of scalars numpy would give its own scalar types.
    return [{name: np.asarray(array[i]) for name, array in arrays.items()} for i in range(count)]


def _as_models_have_it(array: np.ndarray, spec: TensorSpec | None) -> np.ndarray:
    """Text as objects, which .npz files hold as characters of one width; numbers in the machine's byte order."""
    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.kind == "V" and spec is not None and spec.dtype not in ("object", "unknown"):
        # The file says only how large an element of bfloat16 or float8 is.
        own = np.dtype(spec.dtype)
        return array.view(own) if own.itemsize == array.dtype.itemsize else array
    return array.astype(array.dtype.newbyteorder("="), copy=False)


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

"""Sample values as files, for a child: an .npz that keeps every ONNX type.

It holds one entry of JSON (names and dtypes) and one array for each sample and name. Arrays are plain
bytes where numpy's format loses the dtype (bfloat16, float8) or needs pickle (text). An .npz by name of
a user can be read as well. A reference value with numeric ties
(`collage.backends.numerics.comparison.Ranged`) has two more arrays.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import ml_dtypes  # noqa: F401  (registers bfloat16, float8 … with numpy)
import numpy as np

from collage.backends.numerics.comparison import Array, Expected, Ranged
from collage.partitioner.tensor import TensorSpec

_HEADER = "__samples__"
# numpy's mark of a type that a package registers; some are written under names that it cannot read.
_OF_A_PACKAGE = 2


def write_samples(path: Path, samples: Sequence[Mapping[str, Expected]]) -> None:
    """Write one or more samples, each a value for every name."""
    header = [{name: _plain(value).dtype.name for name, value in s.items()} for s in samples]
    arrays = {_HEADER: np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)}
    for i, sample in enumerate(samples):
        for j, value in enumerate(sample.values()):
            arrays[f"{i}.{j}"] = storable(_plain(value))
            if isinstance(value, Ranged):
                arrays[f"{i}.{j}.low"] = storable(value.low)
                arrays[f"{i}.{j}.high"] = storable(value.high)
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays as an ordinary .npz, text as characters of one width, bfloat16 and float8 as their bytes.

    `numpy.savez` takes its own arguments for arrays of the names `file` and `allow_pickle`.
    """
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            plain = array.astype(np.str_) if array.dtype.hasobject else array
            if plain.dtype.isbuiltin == _OF_A_PACKAGE:
                plain = np.ascontiguousarray(plain).reshape(plain.shape).view(f"V{plain.itemsize}")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, plain, allow_pickle=False)


def read_samples(path: Path, specs: Sequence[TensorSpec]) -> list[dict[str, Array]]:
    """Read values that `write_samples` wrote, or an ordinary .npz.

    Args:
        specs: of the values; in an ordinary .npz, values with one axis more than these hold several
            samples.
    """
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        if _HEADER not in stored.files:
            return _unstack({name: stored[name] for name in stored.files}, specs)
        return list(_in_turn(stored, slice(None)))


def samples_in_turn(path: Path, which: slice = slice(None)) -> Iterator[dict[str, Array]]:
    """Read samples that `write_samples` wrote, each when it is asked for.

    Args:
        which: of the samples by position.
    """
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        yield from _in_turn(stored, which)


def _in_turn(stored: Mapping[str, Array], which: slice) -> Iterator[dict[str, Array]]:
    header = json.loads(stored[_HEADER].tobytes())
    for i in range(len(header))[which]:
        yield {
            name: _restored(stored[f"{i}.{j}"], dtype)
            for j, (name, dtype) in enumerate(header[i].items())
        }


def read_expected(path: Path, specs: Sequence[TensorSpec]) -> list[dict[str, Expected]]:
    """The same for reference values; those with numeric ties have their bounds."""
    found: list[dict[str, Expected]] = [{**sample} for sample in read_samples(path, specs)]
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        known = set(stored.files)
        for i, sample in enumerate(found):
            for j, (name, value) in enumerate(sample.items()):
                if isinstance(value, np.ndarray) and f"{i}.{j}.low" in known:
                    low, high = (
                        _restored(stored[f"{i}.{j}.{end}"], value.dtype.name) for end in ("low", "high")
                    )
                    sample[name] = Ranged(value, low, high)
    return found


def content(value: Array) -> bytes:
    """A value's bytes, the same in every process; for text its words."""
    if value.dtype.hasobject:
        return json.dumps(list(map(str, value.reshape(-1)))).encode()
    return np.ascontiguousarray(value).tobytes()


def _plain(value: Expected) -> Array:
    return np.asarray(value.value if isinstance(value, Ranged) else value)


def _unstack(values: dict[str, Array], specs: Sequence[TensorSpec]) -> list[dict[str, Array]]:
    ranks = {spec.name: len(spec.shape) for spec in specs if spec.shape is not None}
    stacked = {name for name, value in values.items() if value.ndim == ranks.get(name, -2) + 1}
    if not stacked:
        return [values]
    count = min(len(values[name]) for name in stacked)
    return [{n: v[i] if n in stacked else v for n, v in values.items()} for i in range(count)]


def storable(value: Array) -> Array:
    """The value in a type that an .npz keeps: text as such, and floats that numpy lacks as integers of their size."""
    if value.dtype.hasobject:
        return value.astype(np.str_)
    if value.dtype.isbuiltin == _OF_A_PACKAGE:
        return np.ascontiguousarray(value).view(f"u{value.dtype.itemsize}")
    return value


def _restored(value: Array, dtype: str) -> Array:
    if value.dtype.kind == "U":
        return value.astype(object)
    return value if value.dtype.name == dtype else value.view(np.dtype(dtype))

"""Values of one sample in one file, which is mapped into memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_ALIGNMENT = 64


@dataclass(frozen=True)
class Placed:
    """Where a value lies in a file of values; text is kept here, since it has no fixed size."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    text: tuple[str, ...] = ()


def write_values(path: Path, values: Mapping[str, np.ndarray]) -> dict[str, Placed]:
    """Write values to a file; where each lies."""
    placed: dict[str, Placed] = {}
    with path.open("wb") as file:
        for name, value in values.items():
            array = np.ascontiguousarray(value).reshape(value.shape)
            file.seek(-file.tell() % _ALIGNMENT, 1)
            text = tuple(map(str, array.reshape(-1))) if array.dtype == object else ()
            placed[name] = Placed(array.dtype.name, array.shape, file.tell(), text)
            if array.dtype != object:
                file.write(array.tobytes())
        file.truncate(file.tell() + _ALIGNMENT)
    return placed


def mapped_values(path: Path, places: Mapping[str, Placed]) -> dict[str, np.ndarray]:
    """Views into one mapped file: a map for each value would use up the file descriptors."""
    whole = np.memmap(path, dtype=np.uint8, mode="r")
    found: dict[str, np.ndarray] = {}
    for name, place in places.items():
        if place.dtype == "object":
            found[name] = np.array(place.text, dtype=object).reshape(place.shape)
            continue
        dtype = np.dtype(place.dtype)
        size = math.prod(place.shape) * dtype.itemsize
        found[name] = whole[place.offset : place.offset + size].view(dtype).reshape(place.shape)
    return found

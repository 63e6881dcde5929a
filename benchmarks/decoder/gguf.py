"""Reads GGUF files whose tensors are float32, Q8_0 or Q4_1, and gives the numbers that they stand for.

Source: the GGUF specification of ggml, and `ggml-quants.c` for the blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_F32, _Q4_1, _Q8_0 = 0, 3, 8
_BLOCK = 32


@dataclass(frozen=True)
class Gguf:
    """A file's metadata, and where its tensors are."""

    metadata: Mapping[str, Any]
    _places: Mapping[str, tuple[tuple[int, ...], int, int]]
    _bytes: Array

    def tensor(self, name: str) -> Array:
        """A tensor as float32; the rows of a matrix are its outputs."""
        shape, kind, start = self._places[name]
        count = int(np.prod(shape))
        if kind == _F32:
            return self._bytes[start : start + 4 * count].view(np.float32).reshape(shape).copy()
        blocks = count // _BLOCK
        if kind == _Q8_0:
            layout = np.dtype([("scale", "<f2"), ("numbers", "i1", _BLOCK)])
            found = self._bytes[start : start + blocks * layout.itemsize].view(layout)
            return (found["scale"][:, None].astype(np.float32) * found["numbers"]).reshape(shape)
        if kind == _Q4_1:
            layout = np.dtype([("scale", "<f2"), ("least", "<f2"), ("numbers", "u1", _BLOCK // 2)])
            found = self._bytes[start : start + blocks * layout.itemsize].view(layout)
            numbers = np.concatenate([found["numbers"] & 15, found["numbers"] >> 4], axis=1)
            scale, least = (found[n][:, None].astype(np.float32) for n in ("scale", "least"))
            return (scale * numbers + least).reshape(shape)
        raise ValueError(f"{name} is stored in GGUF's type {kind}, which this reader does not know")


def read(path: Path) -> Gguf:
    """Open a file; tensors are read when they are asked for."""
    data = np.memmap(path, np.uint8, "r")
    reader = _Reader(data)
    if reader.take("4s") != b"GGUF" or reader.take("I") not in (2, 3):
        raise ValueError(f"{path} is not a GGUF file of version 2 or 3")
    tensors, entries = reader.take("Q"), reader.take("Q")
    metadata = {reader.text(): reader.value(reader.take("I")) for _ in range(entries)}
    places = {}
    for _ in range(tensors):
        name = reader.text()
        # The first dimension is the innermost one.
        shape = tuple(reversed([reader.take("Q") for _ in range(reader.take("I"))]))
        places[name] = (shape, reader.take("I"), reader.take("Q"))
    alignment = metadata.get("general.alignment", 32)
    start = -(-reader.position // alignment) * alignment
    return Gguf(metadata, {n: (s, kind, start + o) for n, (s, kind, o) in places.items()}, data)


class _Reader:
    def __init__(self, data: Array) -> None:
        self._data, self.position = data, 0

    def take(self, kind: str) -> Any:
        (value,) = struct.unpack(f"<{kind}", self._bytes(struct.calcsize(f"<{kind}")))
        return value

    def text(self) -> str:
        return self._bytes(self.take("Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            inner, count = self.take("I"), self.take("Q")
            return [self.value(inner) for _ in range(count)]
        return self.take(_SCALARS[kind])

    def _bytes(self, count: int) -> bytes:
        self.position += count
        return self._data[self.position - count : self.position].tobytes()

"""The metadata of an ONNX file, read without its graph and weights, and without importing ONNX."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

# Of ModelProto and StringStringEntryProto in onnx.proto.
_METADATA, _KEY, _VALUE = 14, 1, 2
_NUMBER, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def metadata_of(path: Path) -> dict[str, str]:
    """The model's metadata; empty where the file is no ONNX model.

    Raises:
        OSError: the file cannot be read.
    """
    found: dict[str, str] = {}
    with path.open("rb") as file:
        for field, size in _fields(file):
            if field == _METADATA:
                entry = io.BytesIO(file.read(size))
                texts = {
                    inner: entry.read(length).decode("utf-8", "replace")
                    for inner, length in _fields(entry)
                }
                found[texts.get(_KEY, "")] = texts.get(_VALUE, "")
            else:
                file.seek(size, io.SEEK_CUR)
    return found


def _fields(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """The number and size of each field that holds bytes; whoever reads them leaves the file behind them."""
    while (tag := _varint(file)) is not None:
        field, kind = tag >> 3, tag & 7
        if kind == _NUMBER:
            _varint(file)
        elif kind == _BYTES:
            yield field, _varint(file) or 0
        elif kind in (_FIXED64, _FIXED32):
            file.seek(8 if kind == _FIXED64 else 4, io.SEEK_CUR)
        else:
            return


def _varint(file: BinaryIO) -> int | None:
    """The next number; None at the end of the file."""
    number = shift = 0
    while byte := file.read(1):
        number |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return number
        shift += 7
    return None

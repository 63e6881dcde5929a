"""ONNX files without ONNX: the fields of a protobuf message are read where they lie, so that large ones are skipped."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

# Keys of the metadata that this project writes begin so.
METADATA_PREFIX = "collage."
# How a field is stored.
_VARINT, _FIXED_64, _DELIMITED, _FIXED_32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def fields(
    data: bytes | mmap.mmap, position: int = 0, end: int | None = None
) -> Iterator[tuple[int, int, int, int]]:
    """Of each field of a message its number, its first byte, that of its content, and its end.

    Args:
        data: what holds the message.
        position: where the message begins.
        end: where it ends; None for the end of the data.

    Raises:
        ValueError: these bytes are no message.
    """
    end = len(data) if end is None else end
    while position < end:
        begin = position
        tag, position = _varint(data, position, end)
        kind, start = tag & 7, position
        if kind == _VARINT:
            _, position = _varint(data, position, end)
        elif kind == _DELIMITED:
            length, start = _varint(data, position, end)
            position = start + length
        elif kind in (_FIXED_64, _FIXED_32):
            position += 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"a field of kind {kind} at byte {begin}")
        if position > end:
            raise ValueError(f"the field at byte {begin} ends behind its message")
        yield tag >> 3, begin, start, position


def _varint(data: bytes | mmap.mmap, position: int, end: int) -> tuple[int, int]:
    """A number, and the place behind it."""
    value = 0
    for count, byte in enumerate(data[position : min(end, position + _LONGEST_VARINT)]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, position + count + 1
    raise ValueError(f"no number at byte {position}")

"""The metadata of an ONNX file, read without its graph and weights, and without importing ONNX."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

from collage.partitioner.wire_format import fields

# Of ModelProto and StringStringEntryProto in onnx.proto.
_METADATA, _KEY, _VALUE = 14, 1, 2


def metadata_of(path: Path) -> dict[str, str]:
    """The model's metadata; empty where the file is no ONNX model.

    Raises:
        OSError: the file cannot be read.
    """
    found: dict[str, str] = {}
    # Where a file is empty or no model, what was found before stays.
    with (
        path.open("rb") as file,
        contextlib.suppress(ValueError),
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        for field, _, start, end in fields(data):
            if field == _METADATA:
                texts = {
                    inner: data[begin:after].decode("utf-8", "replace")
                    for inner, _, begin, after in fields(data, start, end)
                }
                found[texts.get(_KEY, "")] = texts.get(_VALUE, "")
    return found

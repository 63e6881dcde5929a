"""How results and messages leave a sandboxed child: pickle, cut down to plain data.

A child runs native code on a stranger's model, so its bytes are not trusted, and a full unpickler runs
whatever it is told to. `decode` therefore makes only

* Python's own plain values and containers, and paths;
* numpy arrays and scalars, from dtype, shape and bytes (numpy's own pickle form can corrupt memory);
* dataclasses and enums of the packages that the caller names, where they are imported already.

Anything else raises `UnsafeValueError`, and so does a value that is nested too deep or too large when all
that it shares is counted each time: few bytes can stand for more than any memory holds.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import itertools
import pickle
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16, float8 … with numpy)
import numpy as np

OWN_PACKAGES = frozenset({"collage"})

_BUILTINS = frozenset({"set", "frozenset", "complex", "bytearray", "slice", "range"})
_MOST_ITEMS, _MOST_DEPTH = 10_000_000, 100
_PATHS = frozenset({"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"})


class UnsafeValueError(Exception):
    """A child sent something that is not plain data."""


def encode(value: object) -> bytes:
    """Plain data as bytes, for `decode`.

    Raises:
        Exception: the value cannot be pickled.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


def decode(data: bytes | bytearray, packages: Collection[str] = OWN_PACKAGES) -> Any:
    """Read what `encode` wrote; the bytes may be hostile.

    Args:
        packages: top-level packages whose dataclasses and enums may be made.

    Raises:
        UnsafeValueError: the bytes are damaged or ask for anything but plain data.
    """
    try:
        value = _Unpickler(io.BytesIO(data), frozenset(packages)).load()
        _check_size(value)
        return value
    except UnsafeValueError:
        raise
    except Exception as error:  # damaged bytes raise nearly anything
        raise UnsafeValueError(f"damaged bytes ({type(error).__name__}: {error})") from None


def _check_size(value: object) -> None:
    count = 0
    left = [(value, 0)]
    while left:
        each, depth = left.pop()
        inside: Iterable[object] = ()
        if isinstance(each, Mapping):
            inside = itertools.chain(each.keys(), each.values())
        elif isinstance(each, (list, tuple, set, frozenset)):
            inside = each
        elif dataclasses.is_dataclass(each):
            inside = (getattr(each, part.name, None) for part in dataclasses.fields(each))
        else:
            continue
        before = len(left)
        left.extend((item, depth + 1) for item in inside)
        count += len(left) - before
        if count > _MOST_ITEMS or depth > _MOST_DEPTH:
            raise UnsafeValueError("it is nested too deep or stands for too many values")


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            return ("scalar", value.dtype.name, (), value.tobytes())
        if not isinstance(value, np.ndarray):
            return None
        if value.dtype.kind in "OUS":
            return ("text", value.dtype.name, value.shape, [str(item) for item in value.reshape(-1)])
        return ("array", value.dtype.name, value.shape, np.ascontiguousarray(value).tobytes())


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, packages: frozenset[str]) -> None:
        super().__init__(file)
        self._packages = packages

    def persistent_load(self, pid: Any) -> Any:
        kind, dtype, shape, content = pid
        if kind == "text":
            return np.array(content, dtype=object).reshape(shape)
        found = np.dtype(dtype)
        if found.hasobject or found.subdtype is not None or found.fields is not None:
            raise UnsafeValueError(f"an array of {dtype} is not plain data")
        array = np.frombuffer(content, dtype=found).reshape(shape)
        return array[()] if kind == "scalar" else array.copy()

    def find_class(self, module: str, name: str) -> Any:
        if module == "builtins" and name in _BUILTINS:
            return super().find_class(module, name)
        if module in ("pathlib", "pathlib._local") and name in _PATHS:
            return super().find_class(module, name)
        if module.partition(".")[0] in self._packages and "." not in name:
            found = getattr(sys.modules.get(module), name, None)
            if isinstance(found, type) and found.__module__ == module and _is_data(found):
                return found
        raise UnsafeValueError(f"{module}.{name} is not plain data")


def _is_data(found: type) -> bool:
    return dataclasses.is_dataclass(found) or issubclass(found, enum.Enum)

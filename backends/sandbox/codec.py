"""How results and messages leave a sandboxed child: pickle, cut down to plain data.

A child runs native code on a stranger's model, so its bytes are not trusted, and a full unpickler runs
whatever it is told to. `decode` therefore makes only

* Python's own plain values and containers, and paths;
* numpy arrays and scalars, from dtype, shape and bytes (numpy's own pickle form can corrupt memory);
* dataclasses and enums of the packages that the caller names, where they are imported already; a dataclass
  is its fields, and nothing of it is called.

Anything else raises `UnsafeValueError`, and so does a value that is nested too deep or too large when all
that it shares is counted each time: few bytes can stand for more than any memory holds. Nor may reading take
much more memory than the bytes have, or change what it names: no function makes a container from what stands
for more, and no code sets attributes, which would reach those of a class. Nor may it take much more time: keys
can be chosen that all have one hash, so that each is compared with all before it. So no code fills a dict or a
set; `decode` makes them from lists of keys that it has looked at.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import itertools
import pickle
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16, float8 … with numpy)
import numpy as np

OWN_PACKAGES = frozenset({"collage"})

# A call of set or bytearray could make a large one of a number or a range.
_BUILTINS = frozenset({"complex", "slice"})
# Nearly all of what is encoded; a look at them first is quick.
_PLAIN = frozenset({type(None), bool, int, float, str, bytes, list, tuple})
_SETS: dict[str, type[set[Any]] | type[frozenset[Any]]] = {"set": set, "frozenset": frozenset}
_MOST_ITEMS, _MOST_DEPTH = 10_000_000, 100
_HASHED_AT_ONCE = (type(None), float, str, bytes, frozenset, enum.Enum, PurePath, np.generic)
# Of keys of our own few have the hash of another one, as -1 has that of -2.
_MOST_ALIKE = 100
_PATHS = frozenset({"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"})


# The codes that `encode` writes, with the bytes of their argument, or of the length of what follows. Of the
# others some set attributes, and some let a few bytes take much memory: a number of the memo makes it so large.
_ARGUMENTS = {
    **dict.fromkeys(b".()]aetNQR01\x85\x86\x87\x88\x89\x93\x94", 0),
    **{ord("h"): 1, ord("j"): 4, ord("K"): 1, ord("M"): 2, ord("J"): 4, ord("G"): 8, 0x80: 1, 0x95: 8},
}
_LENGTHS = {0x8A: 1, 0x8B: 4, 0x8C: 1, 0x8D: 8, 0x8E: 8, 0x96: 8, ord("B"): 4, ord("C"): 1, ord("X"): 4}
_STOP = ord(".")


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
        _check_codes(data)
        value = _Unpickler(io.BytesIO(data), frozenset(packages)).load()
        _check_size(value)
        return value
    except UnsafeValueError:
        raise
    except Exception as error:  # damaged bytes raise nearly anything
        raise UnsafeValueError(f"damaged bytes ({type(error).__name__}: {error})") from None


def _check_codes(data: bytes | bytearray) -> None:
    at, end, code = 0, len(data), -1
    while code != _STOP:
        code = data[at]
        at += 1
        if (size := _ARGUMENTS.get(code)) is not None:
            at += size
        elif (size := _LENGTHS.get(code)) is not None:
            at += size + int.from_bytes(data[at : at + size], "little")
        else:
            raise UnsafeValueError(f"code {code:#04x} is none of plain data")
        if at > end:
            raise UnsafeValueError("the bytes end too early")


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
        kind = type(value)
        if kind in _PLAIN:
            return None
        if kind is dict:
            return ("dict", "", list(value), list(value.values()))
        if kind is set or kind is frozenset:
            return (kind.__name__, "", list(value), ())
        if isinstance(value, enum.Enum):
            return ("enum", kind.__qualname__, kind.__module__, value.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            state = {name: getattr(value, name) for name in names if hasattr(value, name)}
            return ("data", type(value).__qualname__, type(value).__module__, state)
        if isinstance(value, MappingProxyType):
            return ("mapping", "", (), dict(value))
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
        self._parts = 0  # of all keys so far

    def persistent_load(self, pid: Any) -> Any:
        kind, dtype, shape, content = pid
        if type(kind) is not str or type(dtype) is not str:  # others can be made that take long to read
            raise UnsafeValueError("a value of no kind")
        if kind == "dict" and type(content) is list:
            return dict(zip(self._keys(shape), content, strict=True))
        if kind in _SETS:
            return _SETS[kind](self._keys(shape))
        if kind == "data":
            return _made(self._own_class(shape, dtype), content)
        if kind == "enum" and type(content) is str:
            return _member(self._own_class(shape, dtype), content)
        if kind == "mapping" and type(content) is dict:
            return MappingProxyType(content)
        if kind == "text":
            # A list of lists would be spread out, and few can stand for many.
            if type(content) is not list or not all(type(item) is str for item in content):
                raise UnsafeValueError("an array of text holds something else")
            texts = np.empty(len(content), dtype=object)
            texts[:] = content
            return texts.reshape(shape)
        found = np.dtype(dtype)
        if found.hasobject or found.subdtype is not None or found.fields is not None:
            raise UnsafeValueError(f"an array of {dtype} is not plain data")
        array = np.frombuffer(content, dtype=found).reshape(shape)
        return array[()] if kind == "scalar" else array.copy()

    def _keys(self, keys: Any) -> list[Any]:
        """Keys of which a dict or a set takes each in a few steps."""
        if type(keys) is not list:
            raise UnsafeValueError("keys are no list")
        left = list(keys)
        while left:
            key = left.pop()
            self._parts += 1
            if type(key) is tuple:
                left += key
            elif dataclasses.is_dataclass(key):
                left += [getattr(key, part.name, None) for part in dataclasses.fields(key)]
            elif isinstance(key, int):  # a large number is hashed word by word
                self._parts += key.bit_length() >> 6
            elif not isinstance(key, _HASHED_AT_ONCE):
                raise UnsafeValueError(f"a value of type {type(key).__name__} is no key")
            if self._parts > _MOST_ITEMS:
                raise UnsafeValueError("keys stand for too many values")
        if len(keys) - len({hash(key) for key in keys}) > _MOST_ALIKE:
            raise UnsafeValueError("too many keys have one hash")
        return keys

    def find_class(self, module: str, name: str) -> Any:
        if module == "builtins" and name in _BUILTINS:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "range"):
            return _range
        if module in ("pathlib", "pathlib._local") and name in _PATHS:
            return super().find_class(module, name)
        raise UnsafeValueError(f"{module}.{name} is not plain data")

    def _own_class(self, module: str, name: str) -> type:
        """A dataclass or an enum of the allowed packages."""
        if module.partition(".")[0] in self._packages and "." not in name:
            found = getattr(sys.modules.get(module), name, None)
            if isinstance(found, type) and found.__module__ == module and _is_data(found):
                return found
        raise UnsafeValueError(f"{module}.{name} is not plain data")


def _is_data(found: type) -> bool:
    return dataclasses.is_dataclass(found) or issubclass(found, enum.Enum)


def _made(cls: type, state: dict[str, Any]) -> Any:
    """A dataclass with these fields."""
    if not dataclasses.is_dataclass(cls) or not state.keys() <= {
        field.name for field in dataclasses.fields(cls)
    }:
        raise UnsafeValueError(f"{cls.__name__} has other fields")
    made = object.__new__(cls)
    for name, value in state.items():
        object.__setattr__(made, name, value)
    return made


def _member(cls: type, name: str) -> Any:
    """The member of an enum that has this name."""
    if not issubclass(cls, enum.Enum) or name not in cls.__members__:
        raise UnsafeValueError(f"{cls.__name__} has other members")
    return cls[name]


def _range(*numbers: int) -> range:
    found = range(*numbers)
    if len(found) > _MOST_ITEMS:  # who reads it may make a list of it
        raise UnsafeValueError("a range stands for too many values")
    return found

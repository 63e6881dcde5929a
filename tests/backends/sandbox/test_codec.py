"""What a child sends is plain data or is refused."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import resource
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from collage.backends.contract import Available, Unavailable
from collage.backends.sandbox.codec import UnsafeValueError, decode, encode
from collage.partitioner.cost import Measured
from collage.partitioner.graph.op_kind import OpKind
from collage.shapes.dim_text import DimSizes
from collage.shapes.space import Shape, ShapeSpace


class Evil:
    """Runs a command when it is unpickled by an ordinary unpickler."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch /tmp/never",)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 2.5, "text", b"bytes", (True, {3})], "b": frozenset({1})},
        {
            "shared": [bytearray(b"12"), range(2, 9, 3), 1 + 2j, slice(1, None, 2)],
            "sets": [set(), {1}] * 2,
        },
        [10**30, -1, 70_000, 2**40, 1e-300, "é" * 300, b"x" * 70_000, tuple(range(5)), {(1, 2): {3}}],
        Path("/somewhere/else"),
        Measured(1.0, 0.1, 5),
        [Available("1"), Unavailable("not here", "pip install it")],
        ShapeSpace({"n": DimSizes(1, 8, (1, 8), (0.5, 0.5))}, (Shape({"n": 1}, 1.0),)),
        [OpKind.OPAQUE, {OpKind.OPAQUE: {"nested": [Measured(1.0, 0.1, 5)] * 3}}],
        {-1: "has the hash of", -2: "another", (1 << 3000): frozenset({(1, (2, "x"), None)})},
        {Measured(1.0, 0.1, 5): {Path("/a"): {}}, b"bytes": {2.5: True}, np.int64(3): set()},
    ],
)
def test_plain_data_survives(value: object) -> None:
    assert decode(encode(value)) == value


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.zeros((0, 3), np.int64),
        np.array(5, dtype=np.uint8),
        np.array([1.5, 2], dtype=ml_dtypes.bfloat16),
        np.array(["text", "of", "ONNX"], dtype=object),
        np.array([True, False]),
    ],
)
def test_arrays_survive(array: np.ndarray) -> None:
    back = decode(encode({"x": array}))["x"]
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
    assert back.flags.writeable


def test_numpy_scalars_survive() -> None:
    back = decode(encode(np.float32(1.5)))
    assert (type(back), back) == (np.float32, 1.5)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Evil()),
        pickle.dumps(os.system),
        pickle.dumps(np.zeros(3)),
        pickle.dumps(type),
        b"",
        b"\x80\x05not a pickle",
        encode({"a": 1})[:-3],
    ],
)
def test_everything_else_is_refused(data: bytes) -> None:
    with pytest.raises(UnsafeValueError):
        decode(data)


def _named(module: bytes, name: bytes) -> bytes:
    """The bytes that name something."""
    return b"".join(b"\x8c%c%b" % (len(word), word) for word in (module, name)) + b"\x93"


def _call(module: bytes, name: bytes, arguments: bytes) -> bytes:
    """The bytes that call a function with what these bytes make."""
    return b"\x80\x05" + _named(module, name) + arguments + b"\x85R."


_MEASURED = _named(b"collage.partitioner.cost", b"Measured")
_STATE = b"N}\x8c\x0alatency_usK\x01s\x86"


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x05" + _MEASURED + _STATE + b"b.",
        b"\x80\x05" + _MEASURED + b")\x81" + _STATE + b"b.",
        b"\x80\x05" + _MEASURED + b"(G?\xf0\x00\x00\x00\x00\x00\x00K\x01K\x01tR.",
        b"\x80\x05" + _named(b"collage.partitioner.graph.op_kind", b"OpKind") + _STATE + b"b.",
    ],
)
def test_classes_of_the_owner_stay_as_they_are(data: bytes) -> None:
    """An object's state may be set; a class has one too."""
    with pytest.raises(UnsafeValueError):
        decode(data)
    assert not hasattr(Measured, "latency_us") and not hasattr(OpKind, "latency_us")


def test_a_dataclass_has_its_fields_alone() -> None:
    measured = encode(Measured(1.0, 0.1, 5))
    with pytest.raises(UnsafeValueError, match="other fields"):
        decode(measured.replace(b"latency_us", b"__class__x"))


def _shared_lists() -> list[object]:
    value: list[object] = ["text"] * 100
    for _ in range(4):
        value = [value] * 100
    return value


class _Texts(pickle.Pickler):
    """Says that a marker is an array of text, made of lists within lists."""

    def persistent_id(self, value: object) -> object:
        return ("text", "object", (100,) * 5, _shared_lists()) if value is Ellipsis else None


def _few_for_many_texts() -> bytes:
    buffer = io.BytesIO()
    _Texts(buffer, protocol=5).dump(Ellipsis)
    return buffer.getvalue()


_RANGE_ARGUMENT = _call(b"builtins", b"range", b"\x8a\x05\x00\xe4\x0b\x54\x02")[2:-1]
_MUCH = {
    "bytearray": b"\x80\x05cbuiltins\nbytearray\nJ\x00\x00\x00\x10\x85R.",
    "bytearray by name": _call(b"builtins", b"bytearray", b"J\x00\x00\x00\x40"),
    "bytearray by size": b"\x80\x05\x96\x00\x00\x00\x40\x00\x00\x00\x00.",
    "range": _call(b"builtins", b"range", b"\x8a\x05\x00\xe4\x0b\x54\x02"),
    "set": _call(b"builtins", b"set", _RANGE_ARGUMENT),
    "frozenset": _call(b"builtins", b"frozenset", _RANGE_ARGUMENT),
    "memo": b"\x80\x05Nr\xff\xff\xff\x0f.",
    "texts": _few_for_many_texts(),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", _MUCH)
def test_few_bytes_take_no_more_memory_than_there_is(what: str) -> None:
    """In a process of its own, whose limit is reached where anything large is made."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(_refused, (_MUCH[what],)) < 200


def _refused(data: bytes) -> float:
    """Megabytes that refusing the data takes."""
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (200 << 20),) * 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnsafeValueError) as refusal:
        decode(data)
    assert "MemoryError" not in str(refusal.value)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def _nested(parts: int) -> object:
    """A tuple that is hashed in 2**parts steps."""
    value: object = (1, 2)
    for _ in range(parts):
        value = (value, value)
    return value


class _Lists(pickle.Pickler):
    """Says that dicts, sets and enums hold what they cannot hold here, since making them would take long."""

    def __init__(self, file: io.BytesIO, said: tuple[object, ...]) -> None:
        super().__init__(file, protocol=5)
        self._said = said

    def persistent_id(self, value: object) -> object:
        return self._said if value is Ellipsis else None


def _said(*said: object) -> bytes:
    buffer = io.BytesIO()
    _Lists(buffer, said).dump(Ellipsis)
    return buffer.getvalue()


def _long_numbers() -> bytes:
    """A set of pairs that have one number of a megabyte, which is hashed for each."""
    number = b"\x8b" + (1 << 20).to_bytes(4, "little") + b"\x01" * (1 << 20) + b"\x94"
    pairs = [
        b"J" + i.to_bytes(4, "little") + (b"h\x00" if i else number) + b"\x86" for i in range(9999)
    ]
    return b"\x80\x05(\x8c\x03set\x8c\x00](" + b"".join(pairs) + b"e)tQ."


_PRIME = 2**61 - 1  # whole numbers are hashed modulo this
_ALIKE = [i * _PRIME for i in range(200_000)]
_ALIKE_TUPLES = [(1, (i * _PRIME, "x")) for i in range(200_000)]
_OP_KIND = "collage.partitioner.graph.op_kind"


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        _said("dict", "", _ALIKE, _ALIKE),
        _said("set", "", _ALIKE, ()),
        _said("frozenset", "", _ALIKE_TUPLES, ()),
        _said("dict", "", [_nested(60)], [1]),
        _long_numbers(),
        _said("set", "", [slice(_nested(60))], ()),
        _said("enum", "OpKind", _OP_KIND, _nested(60)),
        _said(_nested(60), "", [], []),
        _said("array", [("a", _nested(60))], (1,), b"1"),
        pickle.dumps(dict.fromkeys(range(3))),
        pickle.dumps({1, 2}),
        pickle.dumps(frozenset({1})),
        _call(_OP_KIND.encode(), b"OpKind", b"K\x01"),
    ],
    ids=range(13),
)
def test_few_bytes_take_no_long_time(data: bytes) -> None:
    """In a process of its own, which is ended where it takes longer."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(_is_refused, (data,)).get(timeout=30)


def _is_refused(data: bytes) -> bool:
    with pytest.raises(UnsafeValueError):
        decode(data)
    return True


def test_dicts_and_sets_keep_their_order_and_kind() -> None:
    value = {"b": 1, "a": {"z": 1, "y": 2}}
    back = decode(encode(value))
    assert list(back) == ["b", "a"] and list(back["a"]) == ["z", "y"]
    assert [type(each) for each in decode(encode([{1}, frozenset({1}), {}]))] == [set, frozenset, dict]
    assert type(decode(encode(OpKind.OPAQUE))) is OpKind


def test_functions_of_our_own_packages_are_refused() -> None:
    with pytest.raises(UnsafeValueError, match="default_threads"):
        from collage.backends.machine.process_policy import default_threads

        decode(pickle.dumps(default_threads))


def test_dataclasses_of_strangers_are_refused() -> None:
    from tests.backends.sandbox.child_tasks import Pair

    pair = encode(Pair(1, np.zeros(1)))
    with pytest.raises(UnsafeValueError, match="Pair"):
        decode(pair)
    assert decode(pair, {"tests"}).left == 1


@pytest.mark.slow
def test_few_bytes_stand_for_no_more_than_memory_holds() -> None:
    """Each list names the one before it twice: 2**64 values when written out, as JSON would."""
    value: list[object] = [0]
    for _ in range(64):
        value = [value, value]
    data = encode(value)
    assert len(data) < 1000
    with pytest.raises(UnsafeValueError, match="too many values"):
        decode(data)


def test_deep_nesting_is_refused() -> None:
    """Who walks the value by recursion would fail."""
    value: list[object] = []
    for _ in range(200):
        value = [value]
    with pytest.raises(UnsafeValueError, match="too deep"):
        decode(pickle.dumps(value))


@pytest.mark.slow
def test_large_flat_values_are_taken() -> None:
    assert decode(encode(list(range(1_000_000))))[-1] == 999_999

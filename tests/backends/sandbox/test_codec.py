"""What a child sends is plain data or is refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from collage.backends.contract import Available, Unavailable
from collage.backends.sandbox.codec import UnsafeValueError, decode, encode
from collage.partitioner.cost import Measured


class Evil:
    """Runs a command when it is unpickled by an ordinary unpickler."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch /tmp/never",)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 2.5, "text", b"bytes", (True, {3})], "b": frozenset({1})},
        Path("/somewhere/else"),
        Measured(1.0, 0.1, 5),
        [Available("1"), Unavailable("not here", "pip install it")],
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


def test_large_flat_values_are_taken() -> None:
    assert decode(encode(list(range(1_000_000))))[-1] == 999_999

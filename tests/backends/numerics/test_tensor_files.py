"""Samples survive the way to a child, whatever their type or name."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np

from collage.backends.numerics.comparison import Ranged
from collage.backends.numerics.tensor_files import (
    read_expected,
    read_samples,
    samples_in_turn,
    write_npz,
    write_samples,
)
from collage.partitioner.tensor import TensorSpec


def test_every_type_and_name_survives(tmp_path: Path) -> None:
    samples = [
        {
            "a/b:0": np.full((2, 3), i, np.float32),
            "file": np.array([i], dtype=np.int64),
            "../up": np.array([1.5, i], dtype=ml_dtypes.bfloat16),
            "f8": np.array([1.5, i], dtype=ml_dtypes.float8_e4m3fn),
            "f8 of another kind": np.array([1.5, i], dtype=ml_dtypes.float8_e5m2),
            "i4": np.array([-8, i], dtype=ml_dtypes.int4),
            "text": np.array(["a", "bc", ""], dtype=object),
            "flag": np.array(True),
            "none": np.zeros((0, 4), np.float16),
        }
        for i in (1, 2)
    ]
    path = tmp_path / "samples.npz"
    write_samples(path, samples)
    back = read_samples(path, [])
    assert len(back) == 2
    for sample, wanted in zip(back, samples, strict=True):
        assert list(sample) == list(wanted)
        for name, value in wanted.items():
            assert sample[name].dtype == value.dtype
            np.testing.assert_array_equal(sample[name], value)


def test_samples_are_read_one_after_another(tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    write_samples(path, [{"x": np.full(3, i, ml_dtypes.bfloat16)} for i in range(5)])
    assert [float(sample["x"][0]) for sample in samples_in_turn(path)] == [0, 1, 2, 3, 4]
    assert [float(sample["x"][0]) for sample in samples_in_turn(path, slice(1, 3))] == [1, 2]


def test_users_file_has_one_sample_or_several(tmp_path: Path) -> None:
    specs = [TensorSpec("x", "float32", (2, 3)), TensorSpec("n", "int64", (1,))]
    path = tmp_path / "user.npz"
    np.savez(path, x=np.ones((2, 3), np.float32), n=np.array([5]))
    (sample,) = read_samples(path, specs)
    assert sample["x"].shape == (2, 3)
    np.savez(path, x=np.ones((4, 2, 3), np.float32), n=np.array([5]))
    several = read_samples(path, specs)
    assert len(several) == 4
    assert several[3]["x"].shape == (2, 3)
    assert several[3]["n"].shape == (1,)


def test_bounds_of_tied_elements_survive(tmp_path: Path) -> None:
    bounds = (np.array([1, 2, 3], ml_dtypes.bfloat16), np.array([1, 0, 3], ml_dtypes.bfloat16))
    ranged = Ranged(bounds[0], bounds[1], bounds[0])
    path = tmp_path / "expected.npz"
    write_samples(path, [{"plain": np.ones(2, np.float32), "y": bounds[0]}, {"y": ranged}])
    first, second = read_expected(path, [])
    assert not any(isinstance(value, Ranged) for value in first.values())
    back = second["y"]
    assert isinstance(back, Ranged)
    assert back.low.dtype == ml_dtypes.bfloat16
    assert back.undecided.tolist() == [False, True, False]
    np.testing.assert_array_equal(read_samples(path, [])[1]["y"], bounds[0])


def test_arrays_have_any_name_in_an_ordinary_file(tmp_path: Path) -> None:
    """Two of these are arguments of `numpy.savez`."""
    names = ("file", "allow_pickle", "a/b", "new\nline", "text", "")
    arrays = {name: np.full((2, 3), i, np.float32) for i, name in enumerate(names)}
    arrays["text"] = np.array(["a", "bc"], dtype=object)
    write_npz(tmp_path / "x", arrays)
    with np.load(tmp_path / "x", allow_pickle=False) as stored:
        assert set(stored.files) == set(names)
        assert all(stored[name].tolist() == array.tolist() for name, array in arrays.items())

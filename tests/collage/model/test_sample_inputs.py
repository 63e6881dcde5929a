"""Sample inputs of models with free dimensions."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from collage.backends.numerics.tensor_files import write_npz
from collage.model.sample_inputs import read_samples
from collage.partitioner.errors import BadInputError
from collage.partitioner.tensor import TensorSpec

_SPEC = TensorSpec("x", "float32", (None, 3))


@pytest.mark.parametrize(("shape", "count"), [((5, 3), 1), ((2, 5, 3), 2)])
def test_free_dimensions_take_any_size(tmp_path: Path, shape: tuple[int, ...], count: int) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros(shape, np.float32))
    samples = read_samples(tmp_path / "x.npz", [_SPEC])
    assert [sample["x"].shape for sample in samples] == [(5, 3)] * count


def test_numbers_come_in_the_byte_order_of_the_machine(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.arange(6, dtype=">f4").reshape(2, 3))
    (sample,) = read_samples(tmp_path / "x.npz", [_SPEC])
    assert sample["x"].dtype == np.float32 and sample["x"].dtype.isnative
    np.testing.assert_array_equal(sample["x"].reshape(-1), range(6))


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_types_that_files_do_not_know_are_those_of_the_model(dtype: type, tmp_path: Path) -> None:
    value = np.arange(6).reshape(2, 3).astype(dtype)
    kind = value.dtype.name
    write_npz(tmp_path / "x.npz", {"x": value, "t": value[0, 0]})
    specs = [TensorSpec("x", kind, (None, 3)), TensorSpec("t", kind, ())]
    (sample,) = read_samples(tmp_path / "x.npz", specs)
    assert sample["x"].dtype == value.dtype and sample["t"].shape == ()
    np.testing.assert_array_equal(sample["x"], value)


@pytest.mark.parametrize("shape", [(5, 4), (3,), (0, 5, 3), (1, 2, 5, 3)])
def test_another_rank_or_size_is_told(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros(shape, np.float32))
    with pytest.raises(BadInputError, match=r"must have shape \(any, 3\) or \(samples, \*\(any, 3\)\)"):
        read_samples(tmp_path / "x.npz", [_SPEC])


def test_groups_of_a_file_have_sizes_of_their_own(tmp_path: Path) -> None:
    arrays = {"short/x": np.zeros((5, 3), np.float32), "long/x": np.ones((2, 9, 3), np.float32)}
    np.savez(tmp_path / "x.npz", allow_pickle=False, **arrays)
    samples = read_samples(tmp_path / "x.npz", [_SPEC])
    assert [sample["x"].shape for sample in samples] == [(5, 3), (9, 3), (9, 3)]


def test_the_files_of_a_folder_are_read_by_name(tmp_path: Path) -> None:
    for number in (2, 1):
        np.savez(tmp_path / f"{number}.npz", x=np.zeros((number, 3), np.float32))
    samples = read_samples(tmp_path, [_SPEC])
    assert [sample["x"].shape for sample in samples] == [(1, 3), (2, 3)]


def test_an_input_may_have_a_slash_in_its_name(tmp_path: Path) -> None:
    specs = [TensorSpec("a/x", "float32", (3,)), TensorSpec("x", "float32", (3,))]
    arrays = {name: np.full(3, i, np.float32) for i, name in enumerate(("a/x", "x"))}
    np.savez(tmp_path / "x.npz", allow_pickle=False, **arrays)
    (sample,) = read_samples(tmp_path / "x.npz", specs)
    assert sample["a/x"][0] == 0 and sample["x"][0] == 1


def test_a_group_that_lacks_an_input_is_told(tmp_path: Path) -> None:
    specs = [TensorSpec("x", "float32", (3,)), TensorSpec("y", "float32", (3,))]
    one = np.zeros(3, np.float32)
    np.savez(tmp_path / "x.npz", allow_pickle=False, **{"a/x": one, "a/y": one, "b/x": one})
    with pytest.raises(BadInputError, match=r"group 'b' holds \['x'\], but the model takes"):
        read_samples(tmp_path / "x.npz", specs)


def test_a_folder_without_samples_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"holds no \.npz file"):
        read_samples(tmp_path, [_SPEC])


def test_inputs_that_the_model_does_not_take_are_to_be_left_out(tmp_path: Path) -> None:
    """As users see it who give a value for a weight that is among the inputs."""
    np.savez(tmp_path / "x.npz", x=np.zeros((5, 3), np.float32), w=np.zeros(2, np.float32))
    with pytest.raises(
        BadInputError, match=r"takes \['x'\]; leave out the others .*default in the file"
    ):
        read_samples(tmp_path / "x.npz", [_SPEC])

"""Sample inputs of models with free dimensions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collage.model.sample_inputs import read_samples
from collage.partitioner.errors import BadInputError
from collage.partitioner.tensor import TensorSpec

_SPEC = TensorSpec("x", "float32", (None, 3))


@pytest.mark.parametrize(("shape", "count"), [((5, 3), 1), ((2, 5, 3), 2)])
def test_free_dimensions_take_any_size(tmp_path: Path, shape: tuple[int, ...], count: int) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros(shape, np.float32))
    samples = read_samples(tmp_path / "x.npz", [_SPEC])
    assert [sample["x"].shape for sample in samples] == [(5, 3)] * count


@pytest.mark.parametrize("shape", [(5, 4), (3,), (0, 5, 3), (1, 2, 5, 3)])
def test_another_rank_or_size_is_told(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros(shape, np.float32))
    with pytest.raises(BadInputError, match=r"must have shape \(any, 3\) or \(samples, \*\(any, 3\)\)"):
        read_samples(tmp_path / "x.npz", [_SPEC])


def test_inputs_that_the_model_does_not_take_are_to_be_left_out(tmp_path: Path) -> None:
    """As users see it who give a value for a weight that is among the inputs."""
    np.savez(tmp_path / "x.npz", x=np.zeros((5, 3), np.float32), w=np.zeros(2, np.float32))
    with pytest.raises(
        BadInputError, match=r"takes \['x'\]; leave out the others .*default in the file"
    ):
        read_samples(tmp_path / "x.npz", [_SPEC])

"""Labels and samples in one file, as a server takes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collage.backends.numerics.tensor_files import write_npz
from collage.metrics.labels import labeled_inputs
from collage.partitioner.errors import BadInputError


def test_labels_stand_beside_samples_of_any_name(tmp_path: Path) -> None:
    """An input may have the name of an argument of `numpy.savez`."""
    inputs, labels = tmp_path / "x.npz", tmp_path / "y.npy"
    write_npz(inputs, {"file": np.ones(3, np.float32), "allow_pickle": np.ones(3, np.float32)})
    np.save(labels, np.arange(3))
    with labeled_inputs(inputs, labels) as both:
        assert both is not None
        with np.load(both, allow_pickle=False) as stored:
            assert set(stored.files) == {"file", "allow_pickle", "labels"}
            assert stored["labels"].tolist() == [0, 1, 2]
    with np.load(inputs) as stored:
        assert set(stored.files) == {"file", "allow_pickle"}


def test_a_file_that_is_no_npz_is_refused(tmp_path: Path) -> None:
    inputs, labels = tmp_path / "x.npz", tmp_path / "y.npy"
    inputs.write_bytes(b"x")
    np.save(labels, np.arange(3))
    with pytest.raises(BadInputError, match=r"cannot be read as \.npz"), labeled_inputs(inputs, labels):
        raise AssertionError("it was taken")

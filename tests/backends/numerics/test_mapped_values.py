"""Values in a file are read back as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from collage.backends.numerics.mapped_values import mapped_values, write_values


def test_values_are_read_back_with_their_types_and_shapes(tmp_path: Path) -> None:
    values = {
        "scalar": np.array(3.5, np.float64),
        "bytes": np.arange(5, dtype=np.uint8),
        "text": np.array([["a", "bc"]], dtype=object),
        "empty": np.zeros((0, 2), np.float32),
        "columns": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    }
    read = mapped_values(tmp_path / "0.bin", write_values(tmp_path / "0.bin", values))
    assert list(read) == list(values)
    for name, value in values.items():
        assert read[name].dtype == value.dtype
        np.testing.assert_array_equal(read[name], value)

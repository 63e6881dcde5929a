"""Requests padded to buckets, and what comes back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from collage.shapes.padding import Padding

_PADDING = Padding("length", (4, 8), {"ids": 1, "mask": 1}, {"y": (1, 2), "z": (0, 1)}, mask="mask")


@pytest.mark.parametrize(("size", "bucket"), [(1, 4), (4, 4), (5, 8), (8, 8), (9, None), (0, None)])
def test_size_goes_to_the_next_bucket(size: int, bucket: int | None) -> None:
    assert _PADDING.bucket(size) == bucket


def test_last_row_is_repeated_and_the_mask_is_zero() -> None:
    feed = {"ids": np.array([[5, 6, 7]]), "mask": np.array([[1, 1, 1]]), "scale": np.array(2.0)}
    padded = _PADDING.padded(feed, 3, 5)
    np.testing.assert_array_equal(padded["ids"], [[5, 6, 7, 7, 7]])
    np.testing.assert_array_equal(padded["mask"], [[1, 1, 1, 0, 0]])
    assert padded["scale"] is feed["scale"]


def test_outputs_lose_what_was_added() -> None:
    made = {"y": np.arange(10).reshape(1, 10), "z": np.arange(5), "w": np.arange(3)}
    cut = _PADDING.cut(made, 3, 5)
    np.testing.assert_array_equal(cut["y"], [[0, 1, 2, 3, 4, 5]])
    np.testing.assert_array_equal(cut["z"], [0, 1, 2])
    assert cut["w"] is made["w"] and cut["y"].flags.c_contiguous


def test_padding_is_read_as_it_was_written() -> None:
    assert Padding.from_json(json.loads(json.dumps(_PADDING.as_json()))) == _PADDING

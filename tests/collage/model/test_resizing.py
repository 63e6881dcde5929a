"""Samples that are cut or repeated for another shape."""

from __future__ import annotations

import numpy as np
import pytest

from collage.model.resizing import resized

Arrays = dict[str, np.ndarray]


def _sample(batch: int, length: int, lengths: list[int] | None = None) -> Arrays:
    return {
        "ids": np.arange(batch * length).reshape(batch, length) + 1000,
        "mask": np.ones((batch, length + 1), bool),
        "lengths": np.array(lengths or [length] * batch),
        "rate": np.array(16000),
    }


def _resized(sample: Arrays, batch: int, length: int) -> Arrays | None:
    return resized(sample, {name: array.shape for name, array in _sample(batch, length).items()})


def test_a_sample_is_cut_or_repeated_along_its_axes() -> None:
    sample = _sample(2, 6)
    cut, long = _resized(sample, 1, 4), _resized(sample, 2, 9)
    assert cut is not None and long is not None
    np.testing.assert_array_equal(cut["ids"], sample["ids"][:1, :4])
    np.testing.assert_array_equal(long["ids"], np.tile(sample["ids"], 2)[:, :9])
    assert (cut["mask"].shape, long["mask"].shape) == ((1, 5), (2, 10))
    assert long["rate"] == 16000 and long["rate"].dtype == np.int64


def test_lengths_become_those_of_the_new_size() -> None:
    made = _resized(_sample(1, 6), 2, 9)
    assert made is not None and made["lengths"].tolist() == [9, 9]


@pytest.mark.parametrize(
    "sample", [_sample(2, 6, [6, 4]), {**_sample(1, 6), "ids": np.zeros((1, 0), np.int64)}]
)
def test_what_may_not_fit_is_not_made(sample: Arrays) -> None:
    assert _resized(sample, 2, 9) is None


def test_inputs_that_hold_one_of_two_sizes_are_not_made() -> None:
    sample = {"x": np.zeros((5, 5), np.float32), "n": np.array(5)}
    assert resized(sample, {"x": (7, 8), "n": ()}) is None
    made = resized(sample, {"x": (7, 7), "n": ()})
    assert made is not None and made["n"] == 7

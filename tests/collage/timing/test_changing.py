"""Inputs of calls at shapes that change."""

from __future__ import annotations

import numpy as np

from collage.partitioner.tensor import TensorSpec
from collage.timing.changing import feed_at

_SPECS = [TensorSpec("x", "float32", (1, 5)), TensorSpec("lengths", "int64", (1,))]


def test_calls_have_the_values_of_a_sample_that_is_given() -> None:
    sample = {"x": np.arange(3, dtype=np.float32).reshape(1, 3), "lengths": np.array([3])}
    feed = feed_at(_SPECS, 0, {}, sample)
    assert feed["x"].tolist() == [[0, 1, 2, 0, 1]] and feed["lengths"].tolist() == [5]


def test_calls_are_seeded_without_a_sample_or_where_it_cannot_be_cut() -> None:
    first, second = (feed_at(_SPECS, seed, {}, None) for seed in (0, 1))
    assert first["x"].shape == (1, 5) and not np.array_equal(first["x"], second["x"])
    empty = {"x": np.zeros((1, 0), np.float32), "lengths": np.array([0])}
    assert np.array_equal(feed_at(_SPECS, 0, {}, empty)["x"], first["x"])

"""Callables are timed in turn, and compared by pairs."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.support.interleave import compare, interleave


def _sleep(seconds: float) -> Callable[[], None]:
    return lambda: time.sleep(seconds)


def test_interleave_pairs_samples() -> None:
    samples = interleave({"a": _sleep(0.001), "b": _sleep(0.008)}, rounds=4, block_s=0.004)
    assert {name: len(s) for name, s in samples.items()} == {"a": 4, "b": 4}
    found = compare(samples["b"], samples["a"])
    assert found.ratio > 1.2  # a busy machine stretches either sleep
    assert found.low <= found.ratio <= found.high


def test_interleave_keeps_its_budget_but_makes_three_rounds() -> None:
    samples = interleave({"a": _sleep(0.001)}, rounds=100, block_s=0.001, budget_s=0.0)
    assert len(samples["a"]) == 3


def test_paired_ratios_see_through_a_drifting_machine() -> None:
    generator = np.random.default_rng(2)
    drift = np.repeat([1.0, 1.6], 8)
    a = 103 * drift * generator.normal(1, 0.005, 16)
    b = 100 * drift * generator.normal(1, 0.005, 16)
    found = compare(a.tolist(), b.tolist())
    assert found.low > 1.01
    assert found.high < 1.05
    assert compare(a.tolist(), b.tolist()) == found


def test_compare_refuses_samples_that_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        compare([1.0], [1.0, 2.0])

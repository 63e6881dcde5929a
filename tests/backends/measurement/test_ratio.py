"""Ratios of plans over several builds, with intervals that hold what they say."""

from __future__ import annotations

import numpy as np
import pytest

from collage.backends.measurement.ratio import compare_builds


def test_builds_that_disagree_widen_the_interval() -> None:
    generator = np.random.default_rng(0)

    def build(ratio: float) -> tuple[list[float], list[float]]:
        b = generator.normal(100.0, 1.0, 24)
        return (b * ratio * generator.normal(1.0, 0.01, 24)).tolist(), b.tolist()

    lucky, unlucky, third = build(1.10), build(0.97), build(1.03)
    assert compare_builds([lucky]).low > 1.08
    found = compare_builds([lucky, unlucky, third])
    assert found.low < 1.0 < found.high
    assert abs(found.ratio - 1.03) < 0.02
    steady = compare_builds([build(r) for r in (1.05, 1.06, 1.04, 1.05, 1.05)])
    assert 1.03 < steady.low < 1.05 < steady.high < 1.07


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 4, 10, 14])
def test_interval_of_few_builds_covers_the_truth_as_often_as_stated(count: int) -> None:
    generator = np.random.default_rng(count)
    held = 0
    for _ in range(1000):
        own = 1.02 * np.exp(generator.normal(0.0, 0.03, count))
        found = compare_builds([([100.0 * ratio] * 3, [100.0] * 3) for ratio in own])
        held += found.low <= 1.02 <= found.high
    assert 0.93 < held / 1000 < 0.97


@pytest.mark.parametrize("builds", [[], [([], [])], [([1.0], [1.0]), ([1.0], [1.0, 2.0])]])
def test_builds_without_pairs_are_refused(builds: list[tuple[list[float], list[float]]]) -> None:
    with pytest.raises(ValueError):
        compare_builds(builds)

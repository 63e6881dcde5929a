"""When a search is left out: one target is far ahead, and no mix promises anything."""

from __future__ import annotations

import pytest

from collage.partitioner.target import Target
from collage.tuning.early_end import reason_to_end

FAST, SLOW = Target("openvino"), Target("mnn")
VARIANT = Target.parse("openvino -threads=1")


@pytest.mark.parametrize(
    ("slow_us", "promise_us", "ends"),
    [
        (1600.0, 1000.0, True),
        (1600.0, 990.0, True),
        (1600.0, 950.0, False),
        # Profiles of two runtimes that are near each other say too little.
        (1400.0, 1000.0, False),
    ],
)
def test_search_ends_only_far_ahead_and_without_a_promise(
    slow_us: float, promise_us: float, ends: bool
) -> None:
    reason = reason_to_end(FAST, {FAST: 1000.0, SLOW: slow_us}, lambda: promise_us)
    assert (reason is not None) is ends
    if reason:
        assert reason.startswith("ended early: openvino is 1.6 times as fast")


def test_variants_of_the_same_runtime_are_no_other_runtime() -> None:
    times_us = {FAST: 1000.0, VARIANT: 1010.0, SLOW: 2000.0}
    assert reason_to_end(FAST, times_us, lambda: 1000.0) is not None


@pytest.mark.parametrize("times_us", [{FAST: 1000.0}, {SLOW: 1000.0}, {}])
def test_a_target_without_another_to_beat_does_not_end_the_search(
    times_us: dict[Target, float],
) -> None:
    assert reason_to_end(FAST, times_us, lambda: 1000.0) is None

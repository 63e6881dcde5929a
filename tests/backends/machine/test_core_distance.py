"""The distance of cores: what is measured is real here, when it changes is stated."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Sequence

import pytest

from collage.backends.machine.core_distance import CoreWatch, _pinned, counting


class Stated(CoreWatch):
    """A watch whose distances somebody stated, infinite where the two are one core; the last one lasts."""

    def __init__(self, distances_us: Sequence[float], seen_us: Sequence[float] = ()) -> None:
        super().__init__(seen_us, patience_s=1.0)
        self.asked = 0
        self._stated = list(distances_us)

    def _are_one(self) -> bool:
        self.asked += 1
        self._now_us = self._stated.pop(0) if len(self._stated) > 1 else self._stated[0]
        return self._now_us == math.inf

    def _distance_us(self) -> float:
        return self._now_us


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores to state distances of, whatever this machine has, and short naps."""
    monkeypatch.setattr(
        "collage.backends.machine.core_distance.os.sched_getaffinity", lambda _: {0, 1}, raising=False
    )
    monkeypatch.setattr("collage.backends.machine.core_distance._NAP_S", 0.05)


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="there is no distance to measure: this process may use one core, or the system does not say which",
)
def test_measuring_a_distance_keeps_the_callers_affinity() -> None:
    allowed = os.sched_getaffinity(0)
    watch = CoreWatch()
    # Beside another test's work the two may look like one core, which says nothing.
    assert any(0.1 < watch.measure() < 10_000 for _ in range(50))
    assert all(0.1 < us < 10_000 for us in watch.seen_us if us < math.inf)
    assert os.sched_getaffinity(0) == allowed
    watch.close()


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"),
    reason="this system pins no thread to a core, so that two on one cannot be had; there is no watch there either",
)
def test_threads_of_one_core_are_far_unless_nothing_else_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pinned to one core they take turns, which costs more than what two threads of a physical core share."""
    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr("collage.backends.machine.core_distance.os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("collage.backends.machine.core_distance._pinned", lambda _: _pinned(core))
    # Beside another test's work a look may err.
    always = CoreWatch()
    seen_us = [always.measure() for _ in range(21)]
    assert statistics.median(seen_us) == math.inf
    assert always.are_near(seen_us) == [True] * 21
    always.close()
    at_times = CoreWatch([1e9] * 40)
    assert at_times.are_near([statistics.median(at_times.measure() for _ in range(21))]) == [False]
    at_times.close()


@pytest.mark.usefixtures("two_cores")
def test_nearest_quarter_of_distances_counts_as_near() -> None:
    assert Stated([]).are_near([50.0]) == [True]  # there is nothing to compare it with
    two_states = Stated([], [10.0] * 6 + [18.0] * 14)
    assert two_states.are_near([10.0, 12.9, 13.1, 18.0, math.inf]) == [True, True, False, False, False]
    rare = Stated([], [10.0] * 2 + [18.0] * 14)
    assert rare.are_near([10.0, 18.0, 23.0, 24.0]) == [True, True, True, False]


@pytest.mark.usefixtures("two_cores")
def test_later_looks_tell_better_what_was_near() -> None:
    watch = Stated([18.0] * 12 + [10.0])
    early = [watch.measure() for _ in range(12)]
    assert watch.are_near(early) == [True] * 12
    for _ in range(3):
        watch.measure()
    assert watch.are_near([*early, 10.0]) == [True] * 13
    for _ in range(3):
        watch.measure()
    assert watch.are_near([*early, 10.0]) == [False] * 12 + [True]


@pytest.mark.usefixtures("two_cores")
def test_one_core_at_times_counts_as_far_and_one_core_mostly_as_near() -> None:
    assert Stated([], [26.0] * 3 + [math.inf] * 5).are_near([26.0, math.inf]) == [True, False]
    assert Stated([], [26.0] + [math.inf] * 7).are_near([26.0, math.inf]) == [True, True]


@pytest.mark.usefixtures("two_cores")
def test_core_watch_sleeps_until_cores_are_near_and_keeps_no_state() -> None:
    watch = Stated([18.0, 18.0, 10.5, 18.0], [10.0] * 8)
    assert watch.settle() == 10.5
    assert watch.asked == 3
    assert watch.seen_us == [10.0] * 8 + [18.0]
    assert watch.measure() == 18.0 and watch.seen_us[-2:] == [18.0, 18.0]


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
def test_core_watch_gives_up_after_its_patience() -> None:
    watch = Stated([18.0], [10.0] * 8)
    begin = time.monotonic()
    assert watch.settle() == 18.0
    assert 0.9 < time.monotonic() - begin < 5.0
    asked = watch.asked
    assert watch.settle() == 18.0
    assert watch.asked == asked + 1


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
def test_without_knowledge_it_looks_for_a_while_first() -> None:
    steady = Stated([18.0])
    assert steady.settle() == 18.0 and steady.asked == 6
    moved = Stated([18.0, 18.0, 18.0, 18.0, 10.0, 10.0, 18.0])
    assert moved.settle() == 10.0 and moved.asked == 6
    away = Stated([10.0, 10.0, 10.0, 18.0, 18.0, 18.0, 18.0, 10.0])
    assert away.settle() == 10.0 and away.asked == 8


def test_single_core_is_always_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "collage.backends.machine.core_distance.os.sched_getaffinity", lambda _: {0}, raising=False
    )
    watch = CoreWatch()
    assert watch.are_near([watch.settle(), watch.measure()]) == [True, True]
    watch.close()


def test_rounds_with_far_cores_count_only_where_others_are_too_few() -> None:
    assert counting([True, False, True, True]) == [True, False, True, True]
    assert counting([True, False, True]) == [True, True, True]
    assert counting([True]) == [True]
    assert counting([]) == []

"""The distance of cores: what is measured is real here, when it changes is stated."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence

import pytest

from backends.cores import CoreWatch, _pinned, counting


class Stated(CoreWatch):
    """A watch whose distances somebody stated, infinite where the two are one core; the last one lasts."""

    def __init__(self, distances_us: Sequence[float], nearest_us: float = math.inf) -> None:
        super().__init__(nearest_us, patience_s=1.0)
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
    monkeypatch.setattr("backends.cores.os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr("backends.cores._NAP_S", 0.05)


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="there is no distance to measure: this process may use one core, or the system does not say which",
)
def test_a_distance_is_measured_and_the_caller_stays_where_it_may_run() -> None:
    allowed = os.sched_getaffinity(0)
    watch = CoreWatch()
    for _ in range(50):  # beside another test's work the two may look like one core, which says nothing
        assert watch.near()  # there is nothing to compare it with
        if watch.nearest_us < math.inf:
            break
    assert 0.1 < watch.nearest_us < 10_000
    first = watch.nearest_us
    watch.near()
    assert watch.nearest_us <= first
    assert os.sched_getaffinity(0) == allowed
    watch.close()


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"),
    reason="this system pins no thread to a core, so that two on one cannot be had; there is no watch there either",
)
def test_two_threads_of_one_core_are_far_unless_nothing_else_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pinned to one core they take turns, which costs more than what two threads of a physical core share."""
    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr("backends.cores.os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("backends.cores._pinned", lambda _: _pinned(core))
    always = CoreWatch()
    assert always.near() and always.nearest_us == math.inf
    always.close()
    at_times = CoreWatch(nearest_us=1e9)
    assert not at_times.near() and at_times.nearest_us == 1e9
    at_times.close()


@pytest.mark.usefixtures("two_cores")
def test_one_core_teaches_no_distance_and_is_not_near() -> None:
    watch = Stated([math.inf, 26.0, 26.0, 26.0, math.inf, 27.0])
    assert watch.settle() and watch.nearest_us == 26.0
    assert not watch.near()
    assert watch.near() and watch.nearest_us == 26.0


@pytest.mark.usefixtures("two_cores")
def test_a_distance_that_was_seen_once_or_twice_makes_nothing_far() -> None:
    """As where two threads of one physical core, which read fastest of all, were taken for two cores."""
    watch = Stated([16.0, 27.0, 26.0, 27.0, 16.0, 16.0, 28.0, 16.0, math.inf, 26.0, 27.0])
    assert watch.near() and watch.nearest_us == 27.0
    assert watch.near()
    assert watch.near() and watch.nearest_us == 27.0  # 16, 16 and 28
    assert not watch.near()  # one core amid the three
    assert watch.near() and watch.nearest_us == 27.0


@pytest.mark.usefixtures("two_cores")
def test_what_is_known_decides_what_is_far() -> None:
    assert Stated([12.0], nearest_us=10.0).near()
    assert not Stated([18.0], nearest_us=10.0).near()
    nearer = Stated([9.0, 8.5, 9.0, 12.5], nearest_us=10.0)
    assert nearer.near() and nearer.nearest_us == 9.0
    assert not nearer.near()


@pytest.mark.usefixtures("two_cores")
def test_it_naps_until_the_cores_are_near() -> None:
    watch = Stated([18.0, 18.0, 10.5, 18.0], nearest_us=10.0)
    assert watch.settle()
    assert watch.asked == 3
    assert not watch.near()


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
def test_its_patience_ends() -> None:
    watch = Stated([18.0], nearest_us=10.0)
    begin = time.monotonic()
    assert not watch.settle()
    assert 0.9 < time.monotonic() - begin < 5.0
    asked = watch.asked
    assert not watch.settle()
    assert watch.asked == asked + 1


@pytest.mark.usefixtures("two_cores")
def test_whoever_knows_nothing_waits_to_see_them_nearer() -> None:
    steady = Stated([18.0])
    assert steady.settle() and steady.asked == 8 and steady.nearest_us == 18.0
    moved = Stated([18.0, 18.0, 18.0, 18.0, 10.0, 10.0, 10.0, 18.0])
    assert moved.settle() and moved.asked == 7 and moved.nearest_us == 10.0
    assert Stated([10.0, 10.0, 10.0, 18.0, 18.0, 10.0, 10.0, 10.0]).settle()


def test_one_core_is_always_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.cores.os.sched_getaffinity", lambda _: {0}, raising=False)
    watch = CoreWatch()
    assert watch.settle() and watch.near() and watch.nearest_us == math.inf
    watch.close()


def test_rounds_with_the_cores_far_apart_count_only_where_others_are_too_few() -> None:
    assert counting([True, False, True, True]) == [True, False, True, True]
    assert counting([True, False, True]) == [True, True, True]
    assert counting([True]) == [True]
    assert counting([]) == []

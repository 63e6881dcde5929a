"""Which runs of a worker count on a machine that is busy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from collage.environments import worker


class _StatedMeter:
    """Says for each run how long its threads waited; the last statement lasts."""

    def __init__(self, waits: Sequence[float]) -> None:
        self._waits, self._runs, self._ended = list(waits), 0, False

    def __call__(self) -> _StatedMeter:
        return self

    def lap(self) -> float:
        self._ended = not self._ended
        if self._ended:  # before a run
            return 0.0
        self._runs += 1
        return self._waits[min(self._runs, len(self._waits)) - 1]


@pytest.mark.parametrize(
    ("waits", "kept"),
    [
        ([0.0], list(range(8))),
        ([0.0, 0.9, 0.01, 0.0, 0.5, 0.0, 0.0, 0.02], [0, 2, 3, 5, 6, 7]),
        # Until five were quiet, or there were three times as many.
        ([0.9] * 10 + [0.0], [10, 11, 12, 13, 14]),
        # All were disturbed: those that waited least.
        ([0.5 - run / 100 for run in range(24)], [19, 20, 21, 22, 23]),
    ],
)
def test_runs_that_waited_for_a_core_do_not_count(
    waits: Sequence[float], kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "WaitMeter", _StatedMeter(waits))
    numbers = itertools.count()
    assert worker.undisturbed(lambda: next(numbers), 8) == kept


def test_three_runs_are_enough_where_three_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "WaitMeter", _StatedMeter([0.0]))
    assert worker.undisturbed(lambda: 1, 3) == [1, 1, 1]

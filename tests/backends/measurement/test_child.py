"""How a measurement is cut short where others wait."""

from __future__ import annotations

import math

import pytest

from collage.backends.measurement.child import _profile_runs, _shortened
from collage.backends.measurement.protocol import Protocol


@pytest.mark.parametrize("left_s", [math.inf, 60.0, 6.0])
def test_with_time_left_a_protocol_stays_as_it_is(left_s: float) -> None:
    assert _shortened(Protocol(), left_s) == Protocol()


@pytest.mark.parametrize(
    ("left_s", "most_s"), [(4.0, 1.5), (2.0, 1.0), (0.5, 0.25), (0.0, 0.0), (-9.0, 0.0)]
)
def test_little_time_shortens_a_protocol(left_s: float, most_s: float) -> None:
    shortened = _shortened(Protocol(), left_s)
    assert (shortened.max_s, shortened.retries) == (most_s, 0)
    assert shortened.min_s <= most_s


@pytest.mark.parametrize(
    ("run_s", "left_s", "runs"),
    [
        (1e-3, math.inf, 10),
        (0.5, math.inf, 4),
        (5.0, math.inf, 1),
        (0.5, 2.0, 2),
        (0.5, 0.9, 0),
        (0.5, -1.0, 0),
        (0.0, 1.0, 10),
    ],
)
def test_profiled_runs_fit_into_the_time_left(run_s: float, left_s: float, runs: int) -> None:
    assert _profile_runs(run_s, left_s) == runs

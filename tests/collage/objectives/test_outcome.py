"""What is told where no setting keeps the bounds."""

from __future__ import annotations

import pytest

from collage.objectives.outcome import unmet


@pytest.mark.parametrize(
    ("p99_ms", "max_latency_ms", "said"),
    [
        (20.0, None, "no setting keeps the bound of 20 ms;"),
        (None, 5.5, "no setting keeps the bound of 5.5 ms;"),
        (20.0, 5.5, "no setting keeps the bounds of 20 ms and 5.5 ms;"),
    ],
)
def test_bounds_that_nothing_keeps_are_named(
    p99_ms: float | None, max_latency_ms: float | None, said: str
) -> None:
    objective = {"name": "throughput=0.5,memory=0.5", "met": False}
    (told,) = unmet({**objective, "p99_ms": p99_ms, "max_latency_ms": max_latency_ms})
    assert told.startswith(said)

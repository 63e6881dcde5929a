"""Goals: how many clients ask in a trial."""

from __future__ import annotations

import pytest

from collage.objectives.goal import Goal


@pytest.mark.parametrize(
    ("goal", "clients"),
    [
        (Goal("throughput"), 8),
        (Goal("throughput=0.7,memory=0.3"), 8),
        (Goal("throughput", p99_us=2e4), 1),
        (Goal("latency=0.5,throughput=0.5"), 1),
        (Goal("memory"), 1),
        (Goal("memory", median_us=5e4), 1),
    ],
)
def test_requests_wait_where_only_their_number_counts(goal: Goal, clients: int) -> None:
    assert goal.clients(4) == clients

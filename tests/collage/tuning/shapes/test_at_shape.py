"""Which plans are timed at a shape where the time is short, by stated times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from collage.deadline import NO_DEADLINE, Deadline
from collage.partitioner.candidate import Candidate, Plan
from collage.timing.plan_timer import JUDGING_ROUNDS
from collage.timing.request import NO_TIME, PlanTiming
from collage.timing.standings import Standings
from collage.timing.timed_plan import TimedPlan
from collage.tuning.shapes.at_shape import AtShape
from collage.tuning.shapes.expected import fastest_first
from tests.collage.tuning.shapes.stated import MODEL, A, B, C, StatedTimer, shapes

_PLANS = [(f"single {t}", Plan((Candidate(MODEL.index.all_nodes, t),))) for t in (A, B, C)]


class _ShortTimer(StatedTimer):
    """Compiles the plans that are needed, and no others."""

    def time(
        self,
        plans: Sequence[TimedPlan],
        again: Sequence[TimedPlan] = (),
        rounds: int = JUDGING_ROUNDS,
        needed: int = 0,
        deadline: Deadline = NO_DEADLINE,
        *_: Any,
        **__: Any,
    ) -> Standings:
        late = [] if deadline is NO_DEADLINE else list(plans)[max(1, needed) :]
        super().time([entry for entry in plans if entry not in late], again, rounds)
        for entry in late:
            entry.timings[self.count - 1] = PlanTiming(failure=NO_TIME)
            entry.baseline_ratios[self.count - 1] = []
        self.entries.extend(late)
        return self.standings


def _timed(us: dict[str, float], needed: int) -> AtShape:
    (known,) = shapes({16: 1.0}, lambda *_: 1.0)
    timer = _ShortTimer(16, lambda target, size: us.get(target), lambda *_: None, 1e-3)
    at = AtShape(
        known.bound,
        known.sampling,
        known.exact,
        known._free,
        timer,
        (A, B, C),
        1e-3,
        Deadline(search_s=0.0, clock=lambda: 1.0),
    )
    at.time(_PLANS, needed=needed)
    return at


def test_no_more_plans_are_compiled_than_there_is_time() -> None:
    at = _timed({str(A): 3.0, str(B): 2.0, str(C): 1.0}, needed=2)
    best = at.best()
    assert best is not None and best.plan.targets == (B,)
    assert at.untried == 1


@pytest.mark.parametrize("needed", [1, 2])
def test_the_others_are_tried_where_those_fail(needed: int) -> None:
    """However late it is, a plan is found if there is one."""
    at = _timed({str(C): 9.0}, needed)
    best = at.best()
    assert best is not None and best.plan.targets == (C,)
    assert at.singles()[C][0].timed and not at.singles()[A][0].timed


def test_the_fastest_plans_come_first() -> None:
    report = {
        "baselines": [
            {"target": str(A), "latency_us": 9.0},
            {"target": str(B), "infeasible": "it is stated"},
            {"target": str(C), "latency_us": 4.0},
        ]
    }
    found = ("found plan", Plan((Candidate(1, A), Candidate(2, B))))
    order = [name for name, _ in fastest_first([*_PLANS, found], [], report)]
    assert order == ["found plan", f"single {C}", f"single {A}", f"single {B}"]
    us = {str(A): 5.0, str(C): 7.0}
    measured = shapes({16: 0.5, 64: 0.5}, lambda target, size: us.get(target))
    order = [name for name, _ in fastest_first(_PLANS, measured, report)]
    assert order == [f"single {A}", f"single {C}", f"single {B}"]

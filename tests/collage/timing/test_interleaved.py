"""A plan that takes too long to compile costs itself, and neither the others nor the time limit."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from collage.backends.sandbox.run import ChildFailed
from collage.deadline import Deadline
from collage.partitioner.errors import NoPlanError
from collage.partitioner.target import Target
from collage.runner import Runner
from collage.timing.interleaved import time_plans
from collage.timing.plan_timer import PlanTimer
from collage.timing.request import (
    LONGEST_S,
    NO_TIME,
    PlanStep,
    PlanSteps,
    PlanTiming,
    Refused,
    TimingRequest,
    told_failure,
)
from tests.backends.measurement.test_measure import faulty
from tests.collage.timing.test_child import comparison

__all__ = ["comparison", "faulty"]  # fixtures


def _timed(request: TimingRequest, run: Callable[..., list[PlanTiming]]) -> list[PlanTiming]:
    """Timings by a child that is stated; the real one answers with what its function returns."""
    return time_plans(request, run=cast(Any, run))


@pytest.mark.slow
@pytest.mark.usefixtures("faulty")
def test_plan_that_hangs_is_left_out_in_time(comparison: TimingRequest) -> None:
    hangs = PlanSteps((PlanStep("whole", Target.parse("faulty -fault=hang")),))
    request = replace(comparison, plans=(comparison.plans[0], hangs), silence_s=4.0)
    begin_s = time.monotonic()
    first, second = time_plans(request)
    assert second.failure == NO_TIME
    assert len(first.samples_us) >= 3 and first.failure is None
    assert time.monotonic() - begin_s < 60


@pytest.mark.slow
@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("fault", ["refuse", "crash-compile"])
def test_a_plan_that_cannot_be_compiled_fails_finally(comparison: TimingRequest, fault: str) -> None:
    fails = PlanSteps((PlanStep("whole", Target.parse(f"faulty -fault={fault}")),))
    first, second = time_plans(replace(comparison, plans=(comparison.plans[0], fails)))
    assert first.failure is None and not first.is_final
    assert second.failure is not None and second.is_final


def test_needed_plan_is_built_however_long_that_takes(comparison: TimingRequest) -> None:
    given_s: list[float] = []

    def run(function: Any, request: TimingRequest, skip: list[int], **more: Any) -> list[PlanTiming]:
        given_s.append(request.silence_s)
        if len(given_s) == 1:
            more["on_message"](0)
            raise ChildFailed("hang", "nothing was heard")
        return [PlanTiming((1.0,))] * len(request.plans)

    found = _timed(replace(comparison, silence_s=4.0), run)
    assert given_s == [4.0, LONGEST_S]
    assert not any(timing.failure for timing in found)


def test_what_was_refused_before_a_crash_stays_refused(comparison: TimingRequest) -> None:
    """In the next process there may be no time to try it."""
    refusal = PlanTiming(failure="refused partition 0: bool is no type of inputs")
    skipped: list[list[int]] = []

    def run(function: Any, request: TimingRequest, skip: list[int], **more: Any) -> list[PlanTiming]:
        skipped.append(skip)
        if len(skipped) == 1:
            for message in (0, 1, Refused(1, refusal), 2):
                more["on_message"](message)
            raise ChildFailed("crash", "signal 11")
        return [PlanTiming((1.0,)), *([PlanTiming(failure=NO_TIME)] * 2)]

    request = replace(comparison, plans=(comparison.plans[0],) * 3)
    found = _timed(request, run)
    assert skipped == [[], [1, 2]]
    assert [timing.failure for timing in found] == [None, refusal.failure, "crash: signal 11"]


@pytest.mark.slow
@pytest.mark.usefixtures("faulty")
def test_a_refusal_outlives_the_process_that_saw_it(comparison: TimingRequest) -> None:
    refuses, crashes = (
        PlanSteps((PlanStep("whole", Target.parse(f"faulty -fault={fault}")),))
        for fault in ("refuse", "crash-compile")
    )
    request = replace(
        comparison, plans=(comparison.plans[0], refuses, crashes), needed=1, prepare_s=60.0
    )
    first, second, third = time_plans(request)
    assert first.failure is None and "refused" in (second.failure or "")
    assert (third.failure or "").startswith("crash")


def test_a_lack_of_time_is_told_only_where_nothing_else_is_known() -> None:
    assert told_failure([None, NO_TIME, "refused"]) == "refused"
    assert told_failure([NO_TIME, None]) == NO_TIME
    assert told_failure([None, None]) is None


@pytest.mark.parametrize(
    ("kind", "is_final"), [("crash", True), ("hang", True), ("out_of_memory", False)]
)
def test_a_crash_counts_at_all_sizes(comparison: TimingRequest, kind: Any, is_final: bool) -> None:
    def run(function: Any, request: TimingRequest, skip: list[int], **more: Any) -> list[PlanTiming]:
        if not skip:
            more["on_message"](1)
            raise ChildFailed(kind, "it is stated")
        return [PlanTiming((1.0,))] * len(request.plans)

    first, second, _ = _timed(comparison, run)
    assert (first.failure, first.is_final) == (None, False)
    assert (second.failure, second.is_final) == (f"{kind}: it is stated", is_final)


class _FreeRunner(Runner):
    """Does not wait for other measurements of this machine."""

    def alone(self, cancel: threading.Event | None) -> contextlib.AbstractContextManager[bool]:
        return contextlib.nullcontext(True)


@pytest.mark.parametrize(("left_s", "silence_s"), [(90.0, 90.0), (1.0, 10.0), (9e9, LONGEST_S)])
def test_plans_of_a_comparison_are_built_by_the_end_of_a_run(
    monkeypatch: pytest.MonkeyPatch, left_s: float, silence_s: float
) -> None:
    asked: list[TimingRequest] = []

    def noted(request: TimingRequest, *_: object) -> list[PlanTiming]:
        asked.append(request)
        raise NoPlanError("nothing runs here")

    monkeypatch.setattr("collage.timing.plan_timer.time_plans", noted)
    template = TimingRequest((), {}, (), (), None, None)  # type: ignore[arg-type]
    timer = PlanTimer(None, template, lambda event: None, runner=_FreeRunner())  # type: ignore[arg-type]
    with pytest.raises(NoPlanError):
        timer.time([], deadline=Deadline(search_s=0.0, end_s=left_s, clock=lambda: 0.0))
    assert asked[0].silence_s == silence_s

"""Starts the process that times plans in turn, again without a plan that crashed it."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from collage.backends.measurement.measure import Run
from collage.backends.registry import on_gpus
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.timing.child import run_rounds
from collage.timing.request import LONGEST_S, NO_TIME, PlanTiming, Refused, TimingRequest

# What a plan does to its process at one size, it may do at any other.
_FINAL = ("crash", "hang")
# A child killed from outside is started again this often before its plan takes the blame.
_KILLED_RETRIES = 2


def time_plans(
    request: TimingRequest, cancel: threading.Event | None = None, run: Run = run_in_child
) -> list[PlanTiming]:
    """Time the plans of a request; one result for each plan, in order.

    Args:
        request: the plans.
        cancel: stops it when set.
        run: starts the child, here or on another machine.

    Raises:
        CancelledError: `cancel` was set.
    """
    failed: dict[int, PlanTiming] = {}
    killed = 0
    while len(failed) < len(request.plans):
        last_touched: list[int] = []
        refused: dict[int, PlanTiming] = {}

        def hear(
            message: Any,
            touched: list[int] = last_touched,
            refused: dict[int, PlanTiming] = refused,
        ) -> None:
            if isinstance(message, Refused):
                refused[message.position] = message.timing
            else:
                touched.append(message)

        gpus = on_gpus(step.target for plan in request.plans for step in plan.steps)
        limits = ChildLimits(
            timeout_s=request.budget_s * 4 + LONGEST_S,
            silence_s=request.silence_s + request.patience_s,
            # GPU drivers reserve address space by the terabyte.
            address_bytes=0 if gpus else None,
            gpus=gpus,
        )
        try:
            timings = run(
                run_rounds,
                request,
                sorted(failed),
                limits=limits,
                cancel=cancel,
                on_message=hear,
            )
        except ChildFailed as failure:
            # What it refused before it ended stays refused: next time there may be no time to try.
            failed |= refused
            if failure.kind == "killed" and killed < _KILLED_RETRIES:
                killed += 1  # from outside: that says nothing about a plan
                continue
            culprit = (
                last_touched[-1] if last_touched else min(set(range(len(request.plans))) - set(failed))
            )
            is_short = failure.kind == "hang" and request.silence_s < LONGEST_S
            if is_short and culprit < request.needed:
                request = replace(request, silence_s=LONGEST_S)
                continue
            failed[culprit] = (
                PlanTiming(failure=NO_TIME)
                if is_short
                else PlanTiming(
                    failure=f"{failure.kind}: {failure.reason}", is_final=failure.kind in _FINAL
                )
            )
            continue
        return [failed.get(i, timing) for i, timing in enumerate(timings)]
    return [failed[i] for i in range(len(request.plans))]

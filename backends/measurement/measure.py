"""Measures one sub-model on one target, in a sacrificial child: compile, verify, time, verify again.

    measurement = measure(MeasureRequest(target, model, inputs, expected, tolerance=1e-3, threads=2))

Every way in which native code fails becomes an `Infeasible` whose reason starts with its category:

* `refused:` the runtime raised, when it compiled or when it ran;
* `crash:` a signal, or an exit;
* `hang:` not done in time;
* `out of memory:` an allocation failed, or the kernel killed it for lack of memory;
* `wrong result:` an output differs from the reference by more than the tolerance, on any sample,
  before or after timing.

A failure that says nothing about the candidate is never a cost: cancellation is a CancelledError, a
child that was killed from outside is measured again, and errors of our own are raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from collage.backends.measurement.child import PROFILING, measure_here
from collage.backends.measurement.request import Measurement, MeasureRequest, versions_of
from collage.backends.registry import on_gpus
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.partitioner.cost import Infeasible
from collage.partitioner.errors import CollageError, OutOfTimeError

__all__ = ["MeasureRequest", "Measurement", "measure"]

Run = Callable[..., Any]
"""Calls a function in a sacrificial child, as `collage.backends.sandbox.run.run_in_child` does."""

_ATTEMPTS = 3
_OF_THE_MACHINE = ("OSError", "PermissionError", "FileNotFoundError", "BlockingIOError")
_CATEGORY = {
    "crash": "crash",
    "hang": "hang",
    "out_of_memory": "out of memory",
    "out_of_disk": "out of disk",
    "error": "failed in our own code",
}


def measure(
    request: MeasureRequest, cancel: threading.Event | None = None, run: Run = run_in_child
) -> Measurement:
    """Measure a request in a child.

    Args:
        run: starts the child, here or on another machine.

    Raises:
        TargetError: the target cannot be used here at all.
        CollageError: the child was killed from outside again and again, or our own code failed.
        OutOfTimeError: it did not end within the request's limit.
    """
    for _ in range(_ATTEMPTS):
        stages = ["starting"]
        try:
            found: Measurement = run(
                measure_here,
                request,
                limits=_limits(request),
                cancel=cancel,
                on_message=stages.append,
            )
        except ChildFailed as failure:
            if failure.kind == "hang" and request.gives_up_s is not None:
                raise OutOfTimeError(
                    f"measuring {request.target} was not done after {request.gives_up_s:.0f} s"
                ) from None
            if failure.kind == "killed":
                last = failure
                continue
            if stages[-1] == PROFILING:  # it runs, only its profiler does not
                plain = measure(replace(request, profile=False), cancel, run)
                return replace(plain, profile_failure=str(failure))
            return _failed(request, failure, stages[-1])
        return found
    raise CollageError(
        f"measuring {request.target} was interrupted {_ATTEMPTS} times ({last.reason}); "
        "look for what kills its processes"
    ) from last


def _limits(request: MeasureRequest) -> ChildLimits:
    gpus = on_gpus([request.target])
    return ChildLimits(
        timeout_s=request.gives_up_s or request.timeout_s,
        # GPU drivers reserve address space by the terabyte.
        address_bytes=0 if gpus else request.memory_bytes,
        gpus=gpus,
    )


def _failed(request: MeasureRequest, failure: ChildFailed, stage: str) -> Measurement:
    """The measurement of a request whose child died: no sub-graph may end a tuning.

    Raises:
        CollageError: the machine failed (a full disk), which says nothing about the sub-graph.
    """
    if failure.kind == "error" and failure.reason.startswith(_OF_THE_MACHINE):
        raise CollageError(
            f"measuring {request.target} failed in our own code: {failure.reason}\n{failure.detail}"
        ) from failure
    reason = f"{_CATEGORY[failure.kind]}: {failure.reason} (while {stage})"
    return Measurement(Infeasible(reason), versions=versions_of(request.target))

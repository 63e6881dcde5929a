"""Measures one sub-model on one target, in a sacrificial child: compile, verify, time, verify again.

    measurement = measure(MeasureRequest(target, model, inputs, expected, tolerance=1e-3, threads=2))

Every way in which native code fails becomes an `Infeasible` whose reason starts with its category:

* `refused:` the runtime raised, when it compiled or when it ran;
* `crash:` a signal, or an exit;
* `hang:` not done in time;
* `out of memory:` an allocation failed, or the kernel killed it for lack of memory;
* `wrong result:` an output differs from the reference by more than the tolerance, on any sample,
  before or after timing.

What says nothing about the candidate is never stored: cancellation is a CancelledError, a child that
somebody killed is measured again, and errors of our own are raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from collage.backends.measurement.child import PROFILING, aligned, measure_batch
from collage.backends.measurement.request import Measurement, MeasureRequest, versions_of
from collage.backends.registry import check_options
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.partitioner.cost import Infeasible
from collage.partitioner.errors import CollageError

__all__ = ["MeasureRequest", "Measurement", "aligned", "measure", "measure_many"]

Run = Callable[..., Any]
"""Calls a function in a sacrificial child, as `collage.backends.sandbox.run.run_in_child` does."""

_ATTEMPTS = 3
_CATEGORY = {"crash": "crash", "hang": "hang", "out_of_memory": "out of memory", "error": "refused"}


def measure(
    request: MeasureRequest, cancel: threading.Event | None = None, run: Run = run_in_child
) -> Measurement:
    """Measure one request in a child of its own.

    Args:
        request: what to measure.
        cancel: stops it when set.
        run: starts the child, here or on another machine.

    Raises:
        CancelledError: `cancel` was set.
        TargetError: the target cannot be used here at all.
        CollageError: the child was killed from outside again and again, or our own code failed.
    """
    (measurement,) = measure_many([request], cancel, run=run)
    return measurement


def measure_many(
    requests: Sequence[MeasureRequest],
    cancel: threading.Event | None = None,
    on_result: Callable[[int, Measurement], None] | None = None,
    run: Run = run_in_child,
) -> list[Measurement]:
    """Measure several requests of one target in turn, in one child as long as that lives.

    When the child dies, the request it died on is measured once more alone, and that is its result;
    the rest go on in a new child.

    Args:
        requests: all for one target.
        cancel: stops it when set; results that `on_result` got are valid.
        on_result: called with each request's position and measurement as soon as it is known.
        run: starts the child.

    Returns:
        One measurement for each request, in order.

    Raises:
        ValueError: the requests are for different targets.
        CancelledError, TargetError, CollageError: as for `measure`.
    """
    if len({request.target for request in requests}) > 1:
        raise ValueError("measure_many takes requests of one target")
    results: dict[int, Measurement] = {}

    def keep(position: int, measurement: Measurement) -> None:
        results[position] = measurement
        if on_result is not None:
            on_result(position, measurement)

    waiting = list(range(len(requests)))
    alone = len(requests) == 1
    killed = 0
    while waiting:
        batch = waiting[:1] if alone else waiting
        watch = _Watch(batch, keep)
        try:
            _run(requests, batch, watch, cancel, run)
        except ChildFailed as failure:
            if failure.kind == "killed":
                killed += 1
                if killed >= _ATTEMPTS:
                    raise CollageError(
                        f"measuring {requests[0].target} was interrupted {killed} times "
                        f"({failure.reason}); look for what kills its processes"
                    ) from failure
            elif watch.stage == PROFILING:  # it runs, only its profiler does not
                plain = measure(replace(requests[watch.current], profile=False), cancel, run)
                keep(watch.current, replace(plain, profile_failure=str(failure)))
            elif alone:
                keep(watch.current, _failed(requests[watch.current], failure, watch.stage))
            else:
                keep(watch.current, measure(requests[watch.current], cancel, run))
        waiting = [i for i in waiting if i not in results]
    return [results[i] for i in range(len(requests))]


class _Watch:
    """Follows a child from its messages: (position, stage) or (position, Measurement)."""

    def __init__(self, batch: Sequence[int], keep: Callable[[int, Measurement], None]) -> None:
        self.current = batch[0]
        self.stage = "starting"
        self._keep = keep

    def __call__(self, message: tuple[int, str | Measurement]) -> None:
        self.current, said = message
        if isinstance(said, Measurement):
            self._keep(self.current, said)
            self.stage = "between two measurements"
        else:
            self.stage = said


def _run(
    requests: Sequence[MeasureRequest],
    batch: Sequence[int],
    watch: _Watch,
    cancel: threading.Event | None,
    run: Run,
) -> None:
    backend = check_options(requests[0].target)
    chosen = [requests[i] for i in batch]
    on_host = backend.memory_domain(requests[0].target) == "host"
    limits = ChildLimits(
        timeout_s=sum(request.timeout_s for request in chosen),
        silence_s=max(request.timeout_s for request in chosen),
        # GPU drivers reserve address space by the terabyte.
        memory_bytes=requests[0].memory_bytes if on_host else 0,
    )
    run(measure_batch, list(batch), chosen, limits=limits, cancel=cancel, on_message=watch)


def _failed(request: MeasureRequest, failure: ChildFailed, stage: str) -> Measurement:
    """The measurement of a request whose child died.

    Raises:
        CollageError: our own code failed, not the runtime.
    """
    if failure.kind == "error":
        raise CollageError(
            f"measuring {request.target} failed in our own code: {failure.reason}\n{failure.detail}"
        ) from failure
    reason = f"{_CATEGORY[failure.kind]}: {failure.reason} (while {stage})"
    return Measurement(Infeasible(reason), versions=versions_of(request.target))

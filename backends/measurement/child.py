"""The part of a measurement that runs in the child (`measure` is the other part).

Invariant: only an exception of the runtime becomes a reason; an error of our own ends the child as an
error.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from collage.backends.contract import Backend, CompileContext, Executable, OpTime, SubModel, ready
from collage.backends.machine.resident_memory import forget_peak, peak_bytes, resident_bytes
from collage.backends.measurement.buffers import buffer_like, output_buffer, poison
from collage.backends.measurement.protocol import Protocol
from collage.backends.measurement.request import Measurement, MeasureRequest, versions_of
from collage.backends.measurement.timing import Timing, preparation, time_runs
from collage.backends.numerics.comparison import Comparison, Expected, compare_outputs
from collage.backends.numerics.tensor_files import read_expected, read_samples
from collage.backends.registry import resolve
from collage.backends.sandbox.native_output import one_line
from collage.backends.sandbox.run import send_message
from collage.partitioner.cost import Infeasible, Measured
from collage.partitioner.target import HOST_MEMORY

Array = np.ndarray
T = TypeVar("T")

PROFILING = "profiling"
# Of the time that is left, timing may take so much; so may the profile of what is left then.
_TIMING_SHARE = 0.5
# A measurement that is cut short has so many samples at the least.
_FEWEST_RUNS = 2
# So many runs are profiled, and fewer of a slow model.
_PROFILE_RUNS, _PROFILE_S = 10, 2.0


class _RefusedError(Exception):
    """The runtime failed; the message is the reason, category included."""


def measure_here(request: MeasureRequest) -> Measurement:
    """Measure in this process, and send each stage as a message; the whole of a child's task."""
    folder = Path.cwd() / "work"
    folder.mkdir()
    end_s = math.inf if request.limit_s is None else time.monotonic() + request.limit_s
    measurement = _measure(resolve(request.target), request, folder, end_s)
    return replace(measurement, versions=versions_of(request.target))


def _measure(backend: Backend, request: MeasureRequest, folder: Path, end_s: float) -> Measurement:
    send_message("reading samples")
    model = request.model
    samples = read_samples(request.inputs_path, model.inputs)
    expected = read_expected(request.expected_path, model.outputs)
    memory_before = resident_bytes()
    forget_peak()
    context = CompileContext(request.threads, folder, request.cache_dir)
    send_message("compiling")
    begin = time.perf_counter()
    try:
        prepared = _attempt("prepare", lambda: ready(backend, model, request.target, context))
        executable = _attempt("compile", lambda: backend.compile(prepared, request.target, context))
    except _RefusedError as refusal:
        return Measurement(Infeasible(str(refusal)))
    partial = Measurement(
        Infeasible("refused: nothing was measured"), compile_s=time.perf_counter() - begin
    )
    try:
        measured = _measure_executable(executable, request, samples, expected, partial, end_s)
    except _RefusedError as refusal:
        measured = replace(partial, cost=Infeasible(str(refusal)))
    measured = replace(measured, peak_memory_bytes=max(0, peak_bytes() - memory_before))
    send_message("closing")
    executable.close()
    return measured


def _measure_executable(
    executable: Executable,
    request: MeasureRequest,
    samples: Sequence[dict[str, Array]],
    expected: Sequence[dict[str, Expected]],
    partial: Measurement,
    end_s: float,
) -> Measurement:
    model = request.model
    inputs = [buffer_like(samples[0][spec.name]) for spec in model.inputs]
    outputs = [output_buffer(spec) for spec in model.outputs]
    send_message("binding")
    _attempt("bind", lambda: executable.bind(inputs, outputs))
    error = 0.0
    send_message("verifying")
    for number, (sample, wanted) in enumerate(zip(samples, expected, strict=True)):
        found = _verify(executable, request, inputs, outputs, sample, wanted)
        if not found.error <= request.tolerance:
            return _wrong(partial, found, request, f"on sample {number}")
        error = max(error, found.error)
    send_message("timing")
    on_device = executable.domain != HOST_MEMORY
    if on_device:  # copies to and from the host are a border's cost and not the region's
        _attempt("bind", lambda: _bind_on_device(executable, model, inputs))
    values = [samples[-1][spec.name] for spec in model.inputs]
    protocol = _shortened(request.protocol, end_s - time.monotonic())
    prepare = preparation(protocol, inputs, values, request.threads)
    stated_us = executable.stated_latency_us
    timing: Timing = (
        _attempt("run", lambda: time_runs(executable.run, protocol, prepare))
        if stated_us is None
        else Timing((stated_us,), yardstick_us=0.0, yardstick_moved=0.0, foreign_load=0.0)
    )
    if on_device:
        _attempt("bind", lambda: executable.bind(inputs, outputs))
    send_message("verifying after timing")
    found = _verify(executable, request, inputs, outputs, samples[-1], expected[-1])
    if not found.error <= request.tolerance:
        return _wrong(partial, found, request, f"after {len(timing.samples_us)} timed runs")
    ops: tuple[OpTime, ...] = ()
    failure = ""
    run_s = timing.median_us / 1e6
    runs = _profile_runs(run_s, end_s - time.monotonic())
    fewer_samples = stated_us is None and protocol != request.protocol
    if request.profile and not runs:
        failure = "there was no time left for it"
    elif request.profile:
        send_message(PROFILING)
        try:
            ops = tuple(_attempt("profile", lambda: executable.profile(runs)))
        except _RefusedError as refusal:
            failure = str(refusal)
    return replace(
        partial,
        cost=Measured(timing.median_us, timing.spread_us, len(timing.samples_us)),
        samples_us=timing.samples_us,
        error=max(error, found.error),
        yardstick_us=timing.yardstick_us,
        disturbance=timing.disturbance,
        ops=ops,
        profile_failure=failure,
        cut_short=fewer_samples or (request.profile and runs < _profile_runs(run_s, math.inf)),
    )


def _shortened(protocol: Protocol, left_s: float) -> Protocol:
    """The same with fewer samples where so many seconds are left for timing, verifying once more and profiling."""
    longest_s = _TIMING_SHARE * left_s
    if longest_s >= (1 + protocol.retries) * protocol.max_s:
        return protocol
    least_s = max(0.0, min(protocol.max_s, longest_s))
    return replace(
        protocol,
        max_s=least_s,
        min_s=min(protocol.min_s, least_s),
        min_runs=_FEWEST_RUNS,
        retries=0,
    )


def _profile_runs(run_s: float, left_s: float) -> int:
    """How many runs to profile when one takes `run_s` seconds and so many are left; 0 for none."""
    fitting = _TIMING_SHARE * left_s / max(run_s, 1e-9)
    if fitting < 1:
        return 0
    return int(max(1.0, min(_PROFILE_RUNS, _PROFILE_S / max(run_s, 1e-9), fitting)))


def _verify(
    executable: Executable,
    request: MeasureRequest,
    inputs: list[Array],
    outputs: Sequence[Array | None],
    sample: dict[str, Array],
    wanted: dict[str, Expected],
) -> Comparison:
    model = request.model
    _feed(executable, model, inputs, outputs, sample)
    for output in outputs:
        poison(output)
    _attempt("run", executable.run)
    references = [wanted[spec.name] for spec in model.outputs]
    return compare_outputs(request.metric, executable.results, references, request.counted)


def _feed(
    executable: Executable,
    model: SubModel,
    inputs: list[Array],
    outputs: Sequence[Array | None],
    sample: Mapping[str, Array],
) -> None:
    """Copy a sample into the buffers; where a shape is another one than before, bind new ones."""
    given = [sample[spec.name] for spec in model.inputs]
    if any(buffer.shape != value.shape for buffer, value in zip(inputs, given, strict=True)):
        inputs[:] = map(buffer_like, given)
        _attempt("bind", lambda: executable.bind(inputs, outputs))
        return
    for buffer, value in zip(inputs, given, strict=True):
        np.copyto(buffer, value)


def _bind_on_device(executable: Executable, model: SubModel, inputs: Sequence[Array]) -> None:
    given = [executable.buffer(spec) for spec in model.inputs]
    for buffer, array in zip(given, inputs, strict=True):
        buffer.write(array)
    executable.bind_device(given, [executable.buffer(spec) for spec in model.outputs])


def _wrong(partial: Measurement, found: Comparison, request: MeasureRequest, when: str) -> Measurement:
    name = request.model.outputs[found.output].name if request.model.outputs else ""
    why = found.reason or f"error {found.error:.3g} ({request.metric}) exceeds {request.tolerance:.3g}"
    reason = f"wrong result: {name!r} {when}: {why}"
    return replace(partial, cost=Infeasible(reason), error=found.error)


def _attempt(what: str, call: Callable[[], T]) -> T:
    """Call the runtime; what it raises is its refusal."""
    try:
        return call()
    except MemoryError as error:
        raise _RefusedError(f"out of memory: {what}: {error}") from error
    except Exception as error:
        text = one_line(str(error)) or type(error).__name__
        failed = text.replace("pre-allocated", "")
        category = "out of memory" if "bad_alloc" in text or "allocate" in failed else "refused"
        raise _RefusedError(f"{category}: {what}: {text}") from error

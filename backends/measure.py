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

import contextlib
import resource
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from backends.contract import Available, Backend, CompileContext, Executable, OpTime, SubModel
from backends.protocol import Protocol
from backends.registry import resolve
from backends.samples import read_samples
from backends.sandbox import ChildFailed, ChildLimits, run_in_child, send_message
from backends.timing import Timing, preparation, time_runs
from backends.verify import Comparison, compare_outputs
from partitioner.cost import Cost, Infeasible, Measured
from partitioner.errors import CancelledError, CollageError
from partitioner.target import Target
from partitioner.tensor import TensorSpec

Array = np.ndarray
T = TypeVar("T")

_ALIGNMENT = 64
_PROFILE_RUNS = 10
_ATTEMPTS = 3
_PROFILING = "profiling"
_CATEGORY = {"crash": "crash", "hang": "hang", "out_of_memory": "out of memory", "error": "refused"}


@dataclass(frozen=True)
class MeasureRequest:
    """What to measure and how.

    Args:
        target: with every option that matters.
        model: the sub-model.
        inputs_path: samples of its inputs (`backends.samples`).
        expected_path: the reference outputs for each of these.
        tolerance: the largest error that is not a wrong result.
        metric: how the error is measured (`backends.verify`).
        threads: of one call, unless the target says otherwise.
        protocol: how to time.
        timeout_s: for all of it, import and compilation included.
        profile: also run under the runtime's own profiler.
        cache_dir: folder for compiled blobs, or None.
        memory_bytes: address space of the child; None for the machine's memory.
    """

    target: Target
    model: SubModel
    inputs_path: Path
    expected_path: Path
    tolerance: float
    threads: int
    metric: str = "max"
    protocol: Protocol = field(default_factory=Protocol)
    timeout_s: float = 120.0
    profile: bool = False
    cache_dir: Path | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Measurement:
    """What was found.

    Args:
        cost: Measured or Infeasible.
        samples_us: raw samples in order of time.
        compile_s: time of compilation.
        peak_memory_bytes: resident memory at its highest, over what the child had before compiling.
        error: the worst output's error over all samples, where outputs could be compared.
        yardstick_us: see `timing`; 0 when nothing was timed.
        disturbance: how much the machine changed or was used by others meanwhile, see `timing`.
        ops: the runtime's own profile, when asked for and not empty.
        profile_failure: why there is no profile although it was asked for, else empty.
        versions: of what was measured, by name.
    """

    cost: Cost
    samples_us: tuple[float, ...] = ()
    compile_s: float = 0.0
    peak_memory_bytes: int = 0
    error: float | None = None
    yardstick_us: float = 0.0
    disturbance: float = 0.0
    ops: tuple[OpTime, ...] = ()
    profile_failure: str = ""
    versions: dict[str, str] = field(default_factory=dict)


def measure(request: MeasureRequest, cancel: threading.Event | None = None) -> Measurement:
    """Measure one request in a child of its own.

    Raises:
        CancelledError: `cancel` was set.
        TargetError: the target cannot be used here at all.
        CollageError: the child was killed from outside again and again, or our own code failed.
    """
    (measurement,) = measure_many([request], cancel)
    return measurement


def measure_many(
    requests: Sequence[MeasureRequest],
    cancel: threading.Event | None = None,
    on_result: Callable[[int, Measurement], None] | None = None,
) -> list[Measurement]:
    """Measure several requests of one target in turn, in one child as long as that lives.

    When the child dies, the request it died on is measured once more alone, and that is its result;
    the rest go on in a new child.

    Args:
        requests: all for one target.
        cancel: stops it when set; results that `on_result` got are valid.
        on_result: called with each request's position and measurement as soon as it is known.

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
            _run(requests, batch, watch, cancel)
        except ChildFailed as failure:
            if failure.kind == "cancelled":
                raise CancelledError("cancelled while measuring") from None
            if failure.kind == "killed":
                killed += 1
                if killed >= _ATTEMPTS:
                    raise CollageError(
                        f"measuring {requests[0].target} was interrupted {killed} times "
                        f"({failure.reason}); look for what kills its processes"
                    ) from failure
            elif watch.stage == _PROFILING:  # it runs, only its profiler does not
                plain = measure(replace(requests[watch.current], profile=False), cancel)
                keep(watch.current, replace(plain, profile_failure=str(failure)))
            elif alone:
                keep(watch.current, _failed(requests[watch.current], failure, watch.stage))
            else:
                keep(watch.current, measure(requests[watch.current], cancel))
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
) -> None:
    backend = resolve(requests[0].target)
    chosen = [requests[i] for i in batch]
    on_host = backend.memory_domain(requests[0].target) == "host"
    limits = ChildLimits(
        timeout_s=sum(request.timeout_s for request in chosen),
        silence_s=max(request.timeout_s for request in chosen),
        # GPU drivers reserve address space by the terabyte.
        memory_bytes=requests[0].memory_bytes if on_host else 0,
    )
    run_in_child(_measure_batch, list(batch), chosen, limits=limits, cancel=cancel, on_message=watch)


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
    return Measurement(Infeasible(reason), versions=_versions(request.target))


def _versions(target: Target) -> dict[str, str]:
    found = resolve(target).probe()
    return {target.backend: found.version} if isinstance(found, Available) else {}


class _RefusedError(Exception):
    """The runtime failed; the message is the reason, category included."""


def _measure_batch(positions: list[int], requests: list[MeasureRequest]) -> None:
    """Runs in the child."""
    backend = resolve(requests[0].target)
    versions = _versions(requests[0].target)
    for position, request in zip(positions, requests, strict=True):
        folder = Path.cwd() / f"work-{position}"
        folder.mkdir()
        tell = _Teller(position)
        measurement = _measure_here(backend, request, folder, tell)
        send_message((position, replace(measurement, versions=versions)))


class _Teller:
    def __init__(self, position: int) -> None:
        self._position = position

    def __call__(self, stage: str) -> None:
        send_message((self._position, stage))


def _measure_here(
    backend: Backend, request: MeasureRequest, folder: Path, tell: Callable[[str], None]
) -> Measurement:
    tell("reading samples")
    model = request.model
    samples = read_samples(request.inputs_path, model.inputs)
    expected = read_samples(request.expected_path, model.outputs)
    memory_before = _resident_bytes()
    _forget_peak()
    context = CompileContext(
        request.threads,
        folder,
        request.cache_dir,
        tuple(np.ascontiguousarray(samples[0][spec.name]) for spec in model.inputs),
    )
    tell("compiling")
    begin = time.perf_counter()
    try:
        executable = _attempt("compile", lambda: backend.compile(model, request.target, context))
    except _RefusedError as refusal:
        return Measurement(Infeasible(str(refusal)))
    partial = Measurement(
        Infeasible("refused: nothing was measured"), compile_s=time.perf_counter() - begin
    )
    try:
        measured = _measure_executable(executable, request, samples, expected, partial, tell)
    except _RefusedError as refusal:
        measured = replace(partial, cost=Infeasible(str(refusal)))
    measured = replace(measured, peak_memory_bytes=max(0, _peak_bytes() - memory_before))
    tell("closing")
    executable.close()
    return measured


def _measure_executable(
    executable: Executable,
    request: MeasureRequest,
    samples: Sequence[dict[str, Array]],
    expected: Sequence[dict[str, Array]],
    partial: Measurement,
    tell: Callable[[str], None],
) -> Measurement:
    model = request.model
    inputs = [_like(samples[0][spec.name]) for spec in model.inputs]
    outputs = [_buffer(spec) for spec in model.outputs]
    tell("binding")
    _attempt("bind", lambda: executable.bind(inputs, outputs))
    error = 0.0
    tell("verifying")
    for number, (sample, wanted) in enumerate(zip(samples, expected, strict=True)):
        found = _verify(executable, request, inputs, outputs, sample, wanted)
        if not found.error <= request.tolerance:
            return _wrong(partial, found, request, f"on sample {number}")
        error = max(error, found.error)
    tell("timing")
    values = [samples[-1][spec.name] for spec in model.inputs]
    prepare = preparation(request.protocol, inputs, values)
    timing: Timing = _attempt("run", lambda: time_runs(executable.run, request.protocol, prepare))
    tell("verifying after timing")
    found = _verify(executable, request, inputs, outputs, samples[-1], expected[-1])
    if not found.error <= request.tolerance:
        return _wrong(partial, found, request, f"after {len(timing.samples_us)} timed runs")
    ops: tuple[OpTime, ...] = ()
    failure = ""
    if request.profile:
        tell(_PROFILING)
        try:
            ops = tuple(_attempt("profile", lambda: executable.profile(_PROFILE_RUNS)))
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
    )


def _verify(
    executable: Executable,
    request: MeasureRequest,
    inputs: Sequence[Array],
    outputs: Sequence[Array | None],
    sample: dict[str, Array],
    wanted: dict[str, Array],
) -> Comparison:
    model = request.model
    for buffer, spec in zip(inputs, model.inputs, strict=True):
        np.copyto(buffer, sample[spec.name])
    for output in outputs:
        _poison(output)
    _attempt("run", executable.run)
    return compare_outputs(
        request.metric, executable.results, [wanted[spec.name] for spec in model.outputs]
    )


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
        text = " ".join(str(error).split())[:400] or type(error).__name__
        category = "out of memory" if "bad_alloc" in text or "allocate" in text else "refused"
        raise _RefusedError(f"{category}: {what}: {text}") from error


def _like(value: Array) -> Array:
    buffer = aligned(value.shape, value.dtype)
    np.copyto(buffer, value)
    return buffer


def _buffer(spec: TensorSpec) -> Array | None:
    """An output's buffer; None where only the run knows its shape."""
    return aligned(spec.static_shape, np.dtype(spec.dtype)) if spec.is_static else None


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """A C-contiguous array at a cache line's border, as the executor's arena has them."""
    if dtype.hasobject:
        return np.empty(shape, dtype=dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.zeros(size + _ALIGNMENT, dtype=np.uint8)
    offset = -raw.ctypes.data % _ALIGNMENT
    return raw[offset : offset + size].view(dtype).reshape(shape)


def _poison(output: Array | None) -> None:
    """Fill with what no kernel computes, so that an output which is never written is seen."""
    if output is None or output.size == 0:
        return
    if output.dtype == object:
        output[...] = "not written"
    else:
        output.reshape(-1).view(np.uint8)[...] = 0xFF  # NaN for floats, -1 for integers


def _resident_bytes() -> int:
    return _status_bytes("VmRSS")


def _peak_bytes() -> int:
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _forget_peak() -> None:
    """Make the kernel count the peak of resident memory from here on."""
    with contextlib.suppress(OSError):  # then the peak includes what was before
        Path("/proc/self/clear_refs").write_text("5")

"""The part of a trial that runs in the child."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage.backends.contract import CompileContext, Executable, ready
from collage.backends.machine.process_policy import apply_environment
from collage.backends.measurement.buffers import buffer_like, output_buffer, poison
from collage.backends.numerics.comparison import (
    Array,
    Expected,
    Ranged,
    compare_outputs,
    is_measured,
)
from collage.backends.numerics.tensor_files import read_expected, read_samples
from collage.backends.registry import resolve
from collage.backends.sandbox.native_output import one_line
from collage.backends.sandbox.run import send_message
from collage.diagnosis.trial import Element, Trial, TrialRequest, WrongValue

_SHOWN = 5


class _RefusedError(Exception):
    """The runtime raised; the message says what."""


@dataclass
class _Buffers:
    inputs: list[Array]
    outputs: list[Array | None]


def try_here(request: TrialRequest) -> Trial:
    """Run a sub-model on its target and compare; what the runtime raises is a refusal."""
    apply_environment()
    send_message("reading samples")
    samples = read_samples(request.inputs_path, request.model.inputs)
    expected = read_expected(request.expected_path, request.model.outputs)
    folder = Path.cwd() / "work"
    folder.mkdir()
    context = CompileContext(request.threads, folder, request.cache_dir)
    backend = resolve(request.target)
    send_message("compiling")
    try:
        model = ready(backend, request.model, request.target, context)
        executable = backend.compile(model, request.target, context)
    except Exception as error:
        return _refused("compile", error)
    try:
        found = _compared(executable, request, samples, expected)
    except _RefusedError as error:
        cause = error.__cause__
        assert isinstance(cause, Exception)
        return _refused(str(error), cause)
    send_message("closing")
    executable.close()
    return found


def _compared(
    executable: Executable,
    request: TrialRequest,
    samples: Sequence[dict[str, Array]],
    expected: Sequence[dict[str, Expected]],
) -> Trial:
    model = request.model
    buffers = _Buffers([], [output_buffer(spec) for spec in model.outputs])
    errors = {spec.name: 0.0 for spec in model.outputs}
    first: WrongValue | None = None
    for number, (sample, wanted) in enumerate(zip(samples, expected, strict=True)):
        given = [sample[spec.name] for spec in model.inputs]
        references = [wanted[spec.name] for spec in model.outputs]
        for run in range(request.runs):
            send_message(f"running sample {number}, run {run}")
            made = _run(executable, buffers, given)
            if len(made) != len(references):
                count = f"{len(made)} outputs instead of {len(references)}"
                wrong = WrongValue("", number, run, math.inf, count)
                return Trial("wrong", count, wrong, errors)
            for spec, array, reference in zip(model.outputs, made, references, strict=True):
                found = compare_outputs(request.metric, [array], [reference])
                if not found.error <= errors[spec.name]:
                    errors[spec.name] = found.error
                if found.error <= request.tolerance:
                    continue
                if first is None or (number, run) == (first.sample, first.run):
                    told = _wrong_value(spec.name, number, run, found.error, found.reason)
                    if first is None or not told.error <= first.error:
                        first = _with_elements(told, array, reference, request.tolerance)
            if first is not None and request.stop_at_fault:
                return Trial("wrong", _said(first, request), first, errors)
    if first is not None:
        return Trial("wrong", _said(first, request), first, errors)
    return Trial("right", errors=errors)


def _run(executable: Executable, buffers: _Buffers, given: Sequence[Array]) -> Sequence[Array]:
    """One run; outputs are poisoned before, so that one which is never written is seen."""
    try:
        if [b.shape for b in buffers.inputs] != [v.shape for v in given] or not buffers.inputs:
            buffers.inputs = [buffer_like(value) for value in given]
            executable.bind(buffers.inputs, buffers.outputs)
        for buffer, value in zip(buffers.inputs, given, strict=True):
            np.copyto(buffer, value)
        for output in buffers.outputs:
            poison(output)
        executable.run()
        return executable.results
    except MemoryError:
        raise
    except Exception as error:
        raise _RefusedError("run") from error


def _refused(stage: str, error: Exception) -> Trial:
    if isinstance(error, MemoryError):
        raise error
    text = one_line(str(error)) or type(error).__name__
    return Trial("refused", f"{stage}: {text}")


def _wrong_value(output: str, sample: int, run: int, error: float, reason: str) -> WrongValue:
    return WrongValue(output, sample, run, error, reason)


def _said(wrong: WrongValue, request: TrialRequest) -> str:
    why = wrong.reason or f"error {wrong.error:.3g} ({request.metric}) exceeds {request.tolerance:.3g}"
    return f"{wrong.output!r} on sample {wrong.sample}, run {wrong.run}: {why}"


def _with_elements(
    wrong: WrongValue, array: Array, reference: Expected, tolerance: float
) -> WrongValue:
    """The same with the elements that are furthest off."""
    if isinstance(reference, Ranged):
        array, reference = reference.judged(array), reference.value
    if array.shape != reference.shape or array.dtype != reference.dtype or not reference.size:
        return wrong
    if is_measured(reference.dtype) and reference.dtype.kind != "c":
        got, wanted = array.astype(np.float64), reference.astype(np.float64)
        with np.errstate(invalid="ignore"):
            off = np.abs(got - wanted)
        off[~np.isfinite(off) & (got != wanted) & ~(np.isnan(got) & np.isnan(wanted))] = np.inf
        off[np.isnan(off)] = 0.0
        finite = np.abs(wanted[np.isfinite(wanted)])
        bound = tolerance * float(finite.max(initial=0.0))
    else:
        off, bound = (array != reference).astype(np.float64), 0.5
    worst = np.argsort(-off, axis=None, kind="stable")[:_SHOWN]
    shown = tuple(
        Element(tuple(int(i) for i in where), str(reference[where]), str(array[where]))
        for where in (np.unravel_index(i, off.shape) for i in worst)
        if off[where] > 0
    )
    count = int(np.count_nonzero(off > bound))
    return WrongValue(
        wrong.output, wrong.sample, wrong.run, wrong.error, wrong.reason, shown, count, off.size
    )

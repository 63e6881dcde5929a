"""What the conformance suite checks of an executable; each check compiles a case and needs no pytest."""

from __future__ import annotations

import gc
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from collage.backends.contract import Array, Backend, CompileContext, Executable, SubModel
from collage.backends.onnxruntime.backend import OnnxRuntimeBackend
from collage.backends.testing.conformance_cases import CASES, Case
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.lazy import ir
from collage.partitioner.target import Target

_REFERENCE = Target.parse("onnxruntime -opt=none -threads=1")
_BY_NAME = {case.name: case for case in CASES}


class RefusedError(CollageError):
    """A case that the backend refuses, with the backend's reason."""


@dataclass(frozen=True)
class Prepared:
    """A case as a model on disk with inputs and expected outputs."""

    model: SubModel
    inputs: tuple[Array, ...]
    expected: tuple[Array, ...]


def prepare(case: Case, folder: Path, seed: int = 0) -> Prepared:
    """Write a case's model and compute its expected outputs."""
    path = folder / "model.onnx"
    inputs, outputs = case.write(path)
    model = SubModel(path, inputs, outputs)
    values = case.inputs(seed)
    work = folder / "reference"
    work.mkdir()
    reference = OnnxRuntimeBackend().compile(model, _REFERENCE, CompileContext(1, work))
    reference.bind(values, [None] * len(outputs))
    reference.run()
    expected = tuple(np.array(a) for a in reference.results)
    reference.close()
    return Prepared(model, values, expected)


def refusal(backend: Backend, target: Target, model: SubModel) -> str | None:
    """The first node that the backend refuses and why, or None."""
    index = GraphIndex.from_ir(ir.load(model.path))
    for node in index.nodes:
        reason = backend.supports(index, node.index, target)
        if reason is not None:
            assert reason.strip(), f"{backend.name} refuses {node.op} without a reason"
            return f"{node.op}: {reason}"
    return None


def compiled(
    backend: Backend, target: Target, model: SubModel, folder: Path, instances: int = 1
) -> Executable:
    """Compile a model in a new empty work folder, to run so many times at once.

    Raises:
        RefusedError: the backend refuses, in `supports` or while it compiles.
    """
    reason = refusal(backend, target, model)
    if reason is not None:
        raise RefusedError(reason)
    work = Path(tempfile.mkdtemp(dir=folder))
    try:
        return backend.compile(model, target, CompileContext(1, work, instances=instances))
    except Exception as error:  # a runtime raises anything; the contract says it is a refusal
        assert str(error).strip(), f"{backend.name} raises {type(error).__name__} without a reason"
        raise RefusedError(str(error)) from error


def assert_close(actual: Sequence[Array], expected: Sequence[Array], tolerance: float) -> None:
    """Compare outputs in dtype, shape and value, relative to the largest magnitude of each."""
    assert len(actual) == len(expected)
    for got, want in zip(actual, expected, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        if not want.size or want.dtype == object:
            assert np.array_equal(got, want)
            continue
        scale = max(float(np.max(np.abs(want.astype(np.float64)))), 1e-12)
        error = float(np.max(np.abs(got.astype(np.float64) - want.astype(np.float64)))) / scale
        assert error <= tolerance, f"relative error {error:.2g} exceeds {tolerance:.2g}"


def buffers(prepared: Prepared) -> list[Array]:
    """Output buffers with numbers that no case computes."""
    return [np.full(a.shape, 77, a.dtype) for a in prepared.expected]


def check_numbers(backend: Backend, target: Target, name: str, tolerance: float) -> None:
    """Right numbers in bound buffers, again after inputs changed in place, inputs untouched."""
    case = _BY_NAME[name]
    with tempfile.TemporaryDirectory() as text:
        prepared = prepare(case, Path(text))
        executable = compiled(backend, target, prepared.model, Path(text))
        inputs = [np.array(a) for a in prepared.inputs]
        outputs = buffers(prepared)
        executable.bind(inputs, outputs)
        for _ in range(3):
            executable.run()
            assert_close(outputs, prepared.expected, tolerance)
            assert all(r is o for r, o in zip(executable.results, outputs, strict=True))
            assert all(np.array_equal(a, b) for a, b in zip(inputs, prepared.inputs, strict=True))
        second = Path(text) / "second"
        second.mkdir()
        changed = prepare(case, second, seed=1)
        if [a.shape for a in changed.expected] == [a.shape for a in prepared.expected]:
            for array, new in zip(inputs, changed.inputs, strict=True):
                np.copyto(array, new)
            executable.run()
            assert_close(outputs, changed.expected, tolerance)
        executable.close()


def check_rebinding(backend: Backend, target: Target, name: str, tolerance: float) -> None:
    """New buffers are used after `bind`, also badly aligned ones, and the old ones are not."""
    with tempfile.TemporaryDirectory() as text:
        prepared = prepare(_BY_NAME[name], Path(text))
        executable = compiled(backend, target, prepared.model, Path(text))
        first, second = buffers(prepared), [_misaligned(a) for a in buffers(prepared)]
        executable.bind(prepared.inputs, first)
        executable.run()
        before = [np.array(a) for a in first]
        executable.bind([_misaligned(a) * 2 for a in prepared.inputs], first)
        executable.bind([_misaligned(a) for a in prepared.inputs], second)
        executable.run()
        assert_close(second, prepared.expected, tolerance)
        assert_close(first, before, 0.0)
        executable.close()


def check_bound_calls(backend: Backend, target: Target, name: str, tolerance: float) -> None:
    """Kept calls compute from and into their own arrays, whatever was bound in between."""
    with tempfile.TemporaryDirectory() as text:
        prepared = prepare(_BY_NAME[name], Path(text))
        executable = compiled(backend, target, prepared.model, Path(text))
        places = [buffers(prepared) for _ in range(2)]
        inputs = [[np.array(a) for a in prepared.inputs] for _ in range(2)]
        calls = [executable.bound_call(inputs[i], places[i]) for i in range(2)]
        for i in (0, 1, 1, 0):
            for place in (*places[0], *places[1]):
                place.fill(77)
            calls[i]()
            assert_close(places[i], prepared.expected, tolerance)
            assert all((place == 77).all() for place in places[1 - i])
            executable.bind(prepared.inputs, [None] * len(prepared.expected))
            executable.run()
            assert_close(executable.results, prepared.expected, tolerance)
            assert_close(places[i], prepared.expected, tolerance)
        executable.close()


def check_own_outputs(backend: Backend, target: Target, name: str, tolerance: float) -> None:
    """An output given as None is allocated by the runtime, whatever the shape in this run."""
    with tempfile.TemporaryDirectory() as text:
        for seed in (0, 1):
            folder = Path(text) / str(seed)
            folder.mkdir()
            prepared = prepare(_BY_NAME[name], folder, seed)
            if not seed:
                executable = compiled(backend, target, prepared.model, folder)
            executable.bind(prepared.inputs, [None] * len(prepared.expected))
            executable.run()
            assert_close(executable.results, prepared.expected, tolerance)
        executable.close()


def check_another(backend: Backend, target: Target, name: str, tolerance: float) -> None:
    """Executables that share weights run at once on values of their own, and one outlives the other."""
    with tempfile.TemporaryDirectory() as text:
        prepared = [prepare(_BY_NAME[name], _made(Path(text) / str(seed)), seed) for seed in (0, 1)]
        if prepared[0].model.inputs != prepared[1].model.inputs:
            raise RefusedError("its shapes depend on the seed")
        first = compiled(backend, target, prepared[0].model, Path(text), instances=2)
        second = first.another()
        if second is None:
            raise RefusedError("each executable is compiled by itself")
        start = threading.Barrier(2)

        def work(executable: Executable, case: Prepared) -> None:
            outputs = buffers(case)
            executable.bind(case.inputs, outputs)
            start.wait(60)
            for _ in range(20):
                for output in outputs:
                    output[...] = 77
                executable.run()
                assert_close(outputs, case.expected, tolerance)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(work, (first, second), prepared))
        first.close()
        outputs = buffers(prepared[1])
        second.bind(prepared[1].inputs, outputs)
        second.run()
        assert_close(outputs, prepared[1].expected, tolerance)
        second.close()


def check_closing(backend: Backend, target: Target, name: str, tolerance: float) -> None:
    """Closing twice is allowed, and compiling again and again takes no more memory."""
    with tempfile.TemporaryDirectory() as text:
        prepared = prepare(_BY_NAME[name], Path(text))
        process = psutil.Process()
        resident = []
        for i in range(12):
            executable = compiled(backend, target, prepared.model, Path(text))
            outputs = buffers(prepared)
            executable.bind(prepared.inputs, outputs)
            executable.run()
            executable.close()
            executable.close()
            if i in (5, 11):
                gc.collect()
                resident.append(process.memory_info().rss)
        grown = resident[-1] - resident[0]
        assert grown < 16 << 20, f"{grown >> 10} KiB more after six more compilations"


def check_profile(backend: Backend, target: Target, name: str, tolerance: float) -> None:
    """A profile names nodes of the model and takes about as long as a call."""
    with tempfile.TemporaryDirectory() as text:
        prepared = prepare(_BY_NAME[name], Path(text))
        executable = compiled(backend, target, prepared.model, Path(text))
        outputs = buffers(prepared)
        executable.bind(prepared.inputs, outputs)
        steps = executable.profile(5)
        index = GraphIndex.from_ir(ir.load(prepared.model.path))
        known = {node.name for node in index.nodes}
        for step in steps:
            assert set(step.nodes) <= known and step.kind and step.latency_us >= 0
        named = [n for step in steps for n in step.nodes]
        assert not steps or named, "no step of the profile is mapped back to a node"
        executable.run()
        assert_close(outputs, prepared.expected, tolerance)
        executable.close()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _misaligned(array: Array) -> Array:
    raw = np.empty(array.nbytes + array.itemsize, np.uint8)
    moved = raw[array.itemsize :].view(array.dtype).reshape(array.shape)
    np.copyto(moved, array)
    return moved

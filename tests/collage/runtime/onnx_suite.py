"""Drives ONNX's own backend test suite in sandboxed children, and returns the outcome of each test.

Terms: a *way* is how a model is run: through our executor with one of the targets first, or whole in
one runtime *alone*. An *outcome* is the result of one test in one way.

Each child runs a batch and sends every outcome as it is made. A child that dies names its culprit: the
first test without an outcome. That one is run again in a child of its own, and the rest of the batch in
another child. If that child dies, too, the test runs without one target after the other, as a tuning gives
the node of an infeasible candidate to another target. Its outcome is that of the first child that lives and
names the target that crashed. The crash of a runtime alone is its outcome.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test import BackendTest, runner
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from collage.backends.contract import CompileContext, SubModel
from collage.backends.registry import resolve, target_spec
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child, send_message
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from tests.collage.runtime.onnx_backend import CollageBackend, PreparedModel

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
BATCH = 120
# The largest of the real models, one partition per node, takes about ten seconds.
LIMITS = ChildLimits(timeout_s=600, silence_s=90)


@dataclass(frozen=True)
class Outcome:
    """What one test came to.

    Args:
        test: its name.
        reason: why it failed, in one line; empty when it passed.
        targets: the targets that had a node, sorted; empty where none was placed.
        crashed: the target without which its child lived, and how that died with it; else empty.
    """

    test: str
    reason: str
    targets: tuple[str, ...] = ()
    crashed: str = ""


class OnnxRuntimeFirst(CollageBackend):
    targets = ("onnxruntime", "openvino")


class OpenVinoFirst(CollageBackend):
    targets = ("openvino", "onnxruntime")


class MnnFirst(CollageBackend):
    targets = ("mnn", "onnxruntime", "openvino")


class FaultyFirst(CollageBackend):
    """For the test that a target's crash falls back to the next one."""

    targets = ("faulty -fault=crash-run", "onnxruntime")


class _Alone(Backend):  # type: ignore[misc]
    """A whole model in one runtime's own Python interface: as ingest writes it, else as it came."""

    session: type[BackendRep]

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
        inner = cls.session

        class Either(BackendRep):  # type: ignore[misc]
            def run(self, inputs: Any, **kwargs: Any) -> Sequence[Any]:
                try:
                    return inner(_ingested(model, inputs)).run(inputs)
                except (
                    Exception
                ):  # the runtime may support a model that ingest refuses or makes unusable
                    return inner(model).run(inputs)

        return Either()

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


class _OnnxRuntimeSession(BackendRep):  # type: ignore[misc]
    def __init__(self, model: onnx.ModelProto) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def run(self, inputs: Any, **kwargs: Any) -> Sequence[Any]:
        names = [value.name for value in self._session.get_inputs()]
        made: Sequence[Any] = self._session.run(None, dict(zip(names, inputs, strict=True)))
        return made


class _OpenVinoSession(BackendRep):  # type: ignore[misc]
    def __init__(self, model: onnx.ModelProto) -> None:
        import openvino

        core = openvino.Core()
        properties = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        read = core.read_model(model.SerializeToString())
        self._compiled = core.compile_model(read, "CPU", properties)

    def run(self, inputs: Any, **kwargs: Any) -> Sequence[Any]:
        made = self._compiled([np.asarray(value) for value in inputs])
        return [np.array(made[i]) for i in range(len(self._compiled.outputs))]


class _MnnSession(BackendRep):  # type: ignore[misc]
    """MNN has no interface of its own that reads ONNX: the whole model as one partition."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "model.onnx"
        onnx.save(model, path)
        index = Model.open(path).index
        inputs = tuple(index.values[name] for name in index.inputs)
        outputs = tuple(index.values[name] for name in index.outputs)
        work = Path(self._folder.name) / "work"
        work.mkdir()
        target = Target("mnn")
        reasons = [target_spec(target).supports(index, node) for node in range(len(index.nodes))]
        if any(reasons):
            raise CollageError(next(filter(None, reasons)))
        self._executable = resolve(target).compile(
            SubModel(path, inputs, outputs), target, CompileContext(1, work)
        )
        self._outputs = len(outputs)

    def run(self, inputs: Any, **kwargs: Any) -> Sequence[Any]:
        self._executable.bind([np.ascontiguousarray(v) for v in inputs], [None] * self._outputs)
        self._executable.run()
        return [np.array(value) for value in self._executable.results]


class OnnxRuntimeAlone(_Alone):
    session = _OnnxRuntimeSession


class OpenVinoAlone(_Alone):
    session = _OpenVinoSession


class MnnAlone(_Alone):
    session = _MnnSession


WAYS: dict[str, type[Backend]] = {
    "onnxruntime first": OnnxRuntimeFirst,
    "openvino first": OpenVinoFirst,
    "mnn first": MnnFirst,
    "onnxruntime": OnnxRuntimeAlone,
    "openvino": OpenVinoAlone,
    "mnn": MnnAlone,
    "faulty first": FaultyFirst,
}
FIRST = ("onnxruntime first", "openvino first", "mnn first")
ALONE = ("onnxruntime", "openvino", "mnn")


def collect(kinds: Iterable[str] = KINDS) -> dict[str, TestCase]:
    """Every test of the suite by its name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases compute with infinities on purpose
        return {case.name: case for kind in kinds for case in load_model_tests(kind=kind)}


def outcomes(way: str, cases: Sequence[TestCase], workers: int = 2) -> dict[str, Outcome]:
    """Run tests in one way.

    Args:
        way: one of `WAYS`.
        cases: the tests.
        workers: how many children at a time.

    Returns:
        The outcome of each test by its name.
    """
    real = [[case] for case in cases if case.kind == "real"]
    others = [case for case in cases if case.kind != "real"]
    batches = real + [others[i : i + BATCH] for i in range(0, len(others), BATCH)]
    with ThreadPoolExecutor(workers) as pool:
        found = pool.map(lambda batch: _run_batch(way, batch), batches)
        return {outcome.test: outcome for part in found for outcome in part}


def _run_batch(way: str, batch: Sequence[TestCase]) -> list[Outcome]:
    made: list[Outcome] = []
    left = list(batch)
    while left:
        begin = len(made)
        try:
            run_in_child(run_here, way, left, limits=LIMITS, on_message=made.append)
            return made
        except ChildFailed as failure:
            culprit, *left = left[len(made) - begin :]
            made += _run_batch(way, [culprit]) if len(batch) > 1 else [_fallen(way, culprit, failure)]
    return made


def _fallen(way: str, case: TestCase, failure: ChildFailed) -> Outcome:
    """The outcome of a test whose own child died: without the target that killed it, if it has others."""
    died = f"{failure.kind}: {failure.reason}"
    backend = WAYS[way]
    for target in backend.targets if issubclass(backend, CollageBackend) else ():
        made: list[Outcome] = []
        with suppress(ChildFailed):
            run_in_child(run_here, way, [case], target, limits=LIMITS, on_message=made.append)
            return replace(made[0], crashed=f"{target}: {died}")
    return Outcome(case.name, died)


def run_here(way: str, cases: Sequence[TestCase], without: str = "") -> None:
    """The child's side: run tests one after the other, sending each outcome as it is made.

    Args:
        way: one of `WAYS`.
        cases: the tests.
        without: a target that gets no node.
    """
    for case in cases:
        send_message(_outcome(way, case, without))


def _outcome(way: str, case: TestCase, without: str) -> Outcome:
    placed: list[PreparedModel] = []

    class Watched(WAYS[way]):  # type: ignore[misc]
        targets = tuple(t for t in getattr(WAYS[way], "targets", ()) if t != without)

        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> BackendRep:
            placed.append(super().prepare(model, device, **kwargs))
            return placed[-1]

    # The runner loads the whole suite when it is made; here it is given the one test.
    runner.load_model_tests = lambda kind: [case] if kind == case.kind else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (test,) = [t for group in BackendTest(Watched).test_cases.values() for t in _cpu_tests(group)]
        reason = ""
        try:
            test()
        except SkipTest as skipped:
            reason = f"skipped: {skipped}"
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
    targets = {str(target) for rep in placed for target in getattr(rep, "placed", ())}
    return Outcome(case.name, reason, tuple(sorted(targets)))


def _cpu_tests(group: type) -> list[Any]:
    names = [name for name in vars(group) if name.startswith("test_") and name.endswith("_cpu")]
    return [getattr(group(name), name) for name in names]


def _ingested(model: onnx.ModelProto, inputs: Sequence[Any]) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "source.onnx").write_bytes(model.SerializeToString())
        weights = {tensor.name for tensor in model.graph.initializer}
        dims = {
            f"{value.name}:{axis}": np.asarray(given).shape[axis]
            for value, given in zip(
                [v for v in model.graph.input if v.name not in weights], inputs, strict=True
            )
            for axis, dim in enumerate(value.type.tensor_type.shape.dim)
            if not dim.HasField("dim_value")
        }
        try:
            return onnx.load(normalize(folder / "source.onnx", folder / "out", dims).path)
        except CollageError:
            return model

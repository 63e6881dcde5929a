"""The test suite that every backend inherits; it needs pytest.

    class TestMine(BackendConformance):
        backend = MyBackend()

A backend may refuse any case with a reason, in `supports` or by raising in `compile`, and the test is
skipped; it must take at least one. Numbers are compared with ONNX Runtime's, graph optimization off.

Set `isolated = True` for a runtime that may crash: each case then runs in a child of its own.

Source: optuna `testing/pytest_storages.py` for the manner.
"""

from __future__ import annotations

import gc
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from collage.backends import registry
from collage.backends.contract import (
    Array,
    Available,
    Backend,
    CompileContext,
    Executable,
    SubModel,
    Unavailable,
    WholeModel,
)
from collage.backends.onnxruntime.backend import OnnxRuntimeBackend
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.backends.testing.conformance_cases import CASES, Case
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.lazy import ir
from collage.partitioner.target import HOST_MEMORY, Target

Check = Callable[[Backend, Target, str, float], None]

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


def compiled(backend: Backend, target: Target, model: SubModel, folder: Path) -> Executable:
    """Compile a model in a new empty work folder.

    Raises:
        RefusedError: the backend refuses, in `supports` or while it compiles.
    """
    reason = refusal(backend, target, model)
    if reason is not None:
        raise RefusedError(reason)
    work = Path(tempfile.mkdtemp(dir=folder))
    try:
        return backend.compile(model, target, CompileContext(1, work))
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


def _misaligned(array: Array) -> Array:
    raw = np.empty(array.nbytes + array.itemsize, np.uint8)
    moved = raw[array.itemsize :].view(array.dtype).reshape(array.shape)
    np.copyto(moved, array)
    return moved


class BackendConformance:
    """Inherit, set `backend`, and pytest runs every check of this class on it."""

    backend: Backend
    target_options: str = ""
    tolerance: float = 1e-3
    isolated: bool = False

    @property
    def target(self) -> Target:
        return Target.parse(f"{self.backend.name} {self.target_options}")

    def _check(self, check: Check, case: str) -> None:
        self._need_runtime()
        try:
            if self.isolated:
                # GPU drivers reserve address space by the terabyte.
                on_host = self.backend.memory_domain(self.target) == HOST_MEMORY
                limits = ChildLimits(address_bytes=None if on_host else 0, gpus=not on_host)
                run_in_child(check, self.backend, self.target, case, self.tolerance, limits=limits)
            else:
                check(self.backend, self.target, case, self.tolerance)
        except RefusedError as error:
            pytest.skip(f"refused: {error}")
        except ChildFailed as error:
            if error.error_type != RefusedError.__name__:
                raise
            pytest.skip(f"refused: {error.reason}")

    def _need_runtime(self) -> None:
        found = self.backend.probe()
        if isinstance(found, Unavailable):
            pytest.skip(found.reason)
        reason = self.backend.check_target(self.target)
        if reason is not None:
            pytest.skip(reason)

    def test_says_whether_it_is_available(self) -> None:
        found = self.backend.probe()
        assert isinstance(found, Available | Unavailable)
        if isinstance(found, Available):
            assert found.version.strip()
        else:
            assert found.reason.strip() and found.how_to_install.strip()

    def test_describes_itself(self) -> None:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", self.backend.name)
        assert self.backend.style in ("library", "fusion", "graph")
        assert self.backend.summary.strip().endswith(".")
        assert re.fullmatch(r"host|[a-z]+:\d+", self.backend.memory_domain(self.target))

    def test_options_have_help_and_a_valid_default(self) -> None:
        names = [option.name for option in self.backend.options]
        assert len(set(names)) == len(names)
        for option in self.backend.options:
            assert option.help.strip()
            if option.choices:
                assert option.default in option.choices
            else:
                assert re.fullmatch(option.pattern, option.default)

    def test_every_choice_works_or_is_refused_with_a_reason(self) -> None:
        self._need_runtime()
        for option in self.backend.options:
            for value in option.choices:
                target = self.target.with_options(**{option.name: value})
                reason = self.backend.check_target(target)
                assert reason is None or reason.strip()

    def test_variants_differ_in_open_options_only(self) -> None:
        self._need_runtime()
        index = GraphIndex.from_ir(ir.Model(ir.Graph([], [], nodes=[]), ir_version=10))
        tunable = {o.name: o.tunable for o in self.backend.options if o.tunable}
        model = WholeModel(index, 0.0, tunable, lambda function: None)
        variants = self.backend.variants(self.target, model)
        assert self.target not in variants and len(set(variants)) == len(variants)
        for variant in variants:
            changed = set(variant.options) - set(self.target.options)
            assert variant == self.target.with_options(**dict(changed))
            assert all(value in tunable.get(name, ()) for name, value in changed)
            assert self.backend.check_target(variant) is None

    def test_mixing_is_undone_by_unmixing(self) -> None:
        self._need_runtime()
        target, nodes, others = self.target, 0b1101100, 0b1001000
        plain = self.backend.unprepared(target)
        assert self.backend.preparation(plain) is None and not self.backend.mixes_with(target, target)
        assert self.backend.mix(target, nodes, 0) == target
        assert self.backend.unmix(target, nodes) == (target, 0)
        if self.backend.mixes_with(target, plain):
            mixed = self.backend.mix(target, nodes, others)
            assert self.backend.unmix(mixed, nodes) == (target, others)
            assert self.backend.check_target(mixed) is None

    def test_rewriting_is_by_a_target_that_is_known(self) -> None:
        rewriting = self.backend.rewriting(self.target)
        assert rewriting is None or registry.check_options(rewriting.by)

    def test_patterns_have_distinct_names(self) -> None:
        names = [pattern.name for pattern in self.backend.patterns(self.target)]
        assert len(set(names)) == len(names)

    def test_takes_something(self, tmp_path: Path) -> None:
        self._need_runtime()
        taken = []
        for case in CASES:
            folder = tmp_path / case.name
            folder.mkdir()
            inputs, outputs = case.write(folder / "model.onnx")
            model = SubModel(folder / "model.onnx", inputs, outputs)
            if refusal(self.backend, self.target, model) is None:
                taken.append(case.name)
        assert taken, "every case is refused"

    @pytest.mark.parametrize("case", [c.name for c in CASES if not c.dynamic])
    def test_numbers(self, case: str) -> None:
        self._check(check_numbers, case)

    @pytest.mark.parametrize("case", [c.name for c in CASES if c.rebind])
    def test_rebinding(self, case: str) -> None:
        self._check(check_rebinding, case)

    @pytest.mark.parametrize("case", [c.name for c in CASES if c.rebind])
    def test_bound_calls(self, case: str) -> None:
        self._check(check_bound_calls, case)

    @pytest.mark.parametrize("case", [c.name for c in CASES if c.dynamic or c.rebind])
    def test_outputs_of_its_own(self, case: str) -> None:
        self._check(check_own_outputs, case)

    @pytest.mark.parametrize("case", [c.name for c in CASES if c.rebind][:1])
    def test_closing(self, case: str) -> None:
        self._check(check_closing, case)

    @pytest.mark.parametrize("case", [c.name for c in CASES if c.rebind])
    def test_profile(self, case: str) -> None:
        self._check(check_profile, case)

    def test_registry_knows_its_options(self) -> None:
        if self.backend.name in registry.backends():
            explicit = registry.canonical(self.target, threads=1)
            assert registry.canonical(explicit) == explicit

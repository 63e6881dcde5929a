"""The test suite that every backend inherits; it needs pytest.

    class TestMine(BackendConformance):
        backend = MyBackend()

A backend may refuse any case with a reason, in `supports` or by raising in `compile`, and the test is
skipped; it must take at least one. Numbers are compared with ONNX Runtime's, graph optimization off.

Set `isolated = True` for a runtime that may crash: each case then runs in a child of its own.

Source: optuna `testing/pytest_storages.py` for the manner.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from collage.backends import registry
from collage.backends.contract import Available, Backend, SubModel, Unavailable
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.backends.testing.conformance_cases import CASES
from collage.backends.testing.conformance_checks import (
    RefusedError,
    check_another,
    check_bound_calls,
    check_closing,
    check_numbers,
    check_own_outputs,
    check_profile,
    check_rebinding,
    refusal,
)
from collage.backends.whole_model import WholeModel
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.lazy import ir
from collage.partitioner.target import HOST_MEMORY, Target

Check = Callable[[Backend, Target, str, float], None]


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

    @pytest.mark.parametrize("case", [c.name for c in CASES if c.dynamic or c.rebind])
    def test_outputs_of_its_own(self, case: str) -> None:
        self._check(check_own_outputs, case)

    @pytest.mark.parametrize("case", [c.name for c in CASES if c.rebind])
    def test_bound_calls(self, case: str) -> None:
        self._check(check_bound_calls, case)

    @pytest.mark.parametrize("case", [c.name for c in CASES if c.rebind])
    def test_several_at_once(self, case: str) -> None:
        self._check(check_another, case)

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

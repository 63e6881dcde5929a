"""Settings that tuning tries on whole models: they reach the runtime, and change no result."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from collage.backends.contract import Available, CompileContext
from collage.backends.mnn import settings as mnn
from collage.backends.ncnn import backend as ncnn
from collage.backends.numerics.comparison import output_error
from collage.backends.openvino import executable as openvino
from collage.backends.registry import backend_of, backends, canonical
from collage.backends.sandbox.run import run_in_child
from collage.backends.support import ort_session
from collage.backends.testing.conformance_cases import CASES
from collage.backends.testing.conformance_checks import buffers, compiled, prepare
from collage.partitioner.target import Target

CONTEXT = CompileContext(2, Path("nowhere"))


def _on_trial() -> list[Target]:
    return [
        Target(backend.name).with_options(**{option.name: value})
        for backend in backends().values()
        if isinstance(backend.probe(), Available)
        for option in backend.options
        if option.on_trial
        for value in option.tunable
    ]


def error_of(target: Target) -> float:
    """The error of two products, computed in a child: its runtime stays out of the tests' process."""
    (chosen,) = (case for case in CASES if case.name == "dense")
    with tempfile.TemporaryDirectory() as text:
        prepared = prepare(chosen, Path(text))
        executable = compiled(backend_of(target), target, prepared.model, Path(text))
        made = buffers(prepared)
        executable.bind(prepared.inputs, made)
        executable.run()
        executable.close()
    return output_error("max", made, prepared.expected)


@pytest.mark.slow  # each is a process, and ncnn's converts
@pytest.mark.parametrize("target", _on_trial(), ids=str)
def test_a_setting_on_trial_computes_the_same(target: Target) -> None:
    assert run_in_child(error_of, target) < 1e-5


def test_settings_of_onnxruntime_reach_its_session() -> None:
    target = Target.parse("onnxruntime -prepack=off -pool=off")
    options = ort_session.options_of(target, CONTEXT)
    assert options.get_session_config_entry("session.disable_prepacking") == "1"
    assert options.enable_cpu_mem_arena is False
    assert ort_session.options_of(Target("onnxruntime"), CONTEXT).enable_cpu_mem_arena is True


def test_settings_of_openvino_reach_its_compiler() -> None:
    found = openvino._properties(Target.parse("openvino -partitioner=static -snippets=off"), CONTEXT)
    assert (found["TBB_PARTITIONER"], found["SNIPPETS_MODE"]) == ("STATIC", "DISABLE")
    usual = openvino._properties(Target("openvino"), CONTEXT)
    assert not usual.keys() & {"TBB_PARTITIONER", "SNIPPETS_MODE"}


def test_settings_of_mnn_and_ncnn_reach_them() -> None:
    # MNN's Python module reads numbers, and nothing from words.
    assert mnn.modes(Target.parse("mnn -memory=low -power=high")) == {"memory": 2, "power": 1}
    assert mnn.modes(Target("mnn")) == {}
    names = ("use_sgemm_convolution", "use_packing_layout", "lightmode")
    usual = ncnn._options(Target("ncnn"), CONTEXT)
    assert [usual[name] for name in names] == [True, True, True]
    for setting, name in zip(("sgemm", "packing", "light"), names, strict=True):
        found = ncnn._options(Target("ncnn").with_options(**{setting: "off"}), CONTEXT)
        assert found == {**usual, name: False}


@pytest.mark.parametrize("target", _on_trial(), ids=str)
def test_a_setting_has_costs_of_its_own_and_its_default_keeps_the_old_ones(target: Target) -> None:
    usual = canonical(Target(target.backend), 2)
    assert canonical(target, 2) != usual
    (name,) = (name for name, _ in target.options)
    option = next(o for o in backend_of(target).options if o.name == name)
    assert canonical(target.with_options(**{name: option.default}), 2) == usual

"""Settings of MNN reach it, and int8 rounds weights and inputs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from collage.backends.contract import Available, CompileContext
from collage.backends.mnn import settings
from collage.backends.mnn.backend import MnnBackend
from collage.backends.registry import backend_of, canonical, tunable_options
from collage.backends.sandbox.run import run_in_child
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target
from tests.backends.quantization.test_quantize import model_of, outputs_of

BACKEND = MnnBackend()
INT8 = Target.parse("mnn -precision=int8")
CONV = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[1, 16, 12, 12] x) => (float[1, 16, 12, 12] y) {
   [conv] y = Conv<pads: ints = [1, 1, 1, 1]>(x, w)
}
"""
NODES = """
<ir_version: 10, opset_import: ["" : 17]>
g (float[1, 16, 12, 12] x) => (float[1, 16, 12, 12] y) {
   [depthwise] a = Conv<group: int = 16, pads: ints = [1, 1, 1, 1]>(x, d)
   [clip] b = Relu(a)
   [grouped] c = Conv<group: int = 4>(b, v)
   [full] y = Conv<pads: ints = [1, 1, 1, 1]>(c, w)
}
"""
needs_mnn = pytest.mark.skipif(
    not isinstance(BACKEND.probe(), Available), reason="MNN is not installed"
)


def whole_weights() -> np.ndarray:
    """Weights that int8 holds exactly: whole numbers over its whole range."""
    weights: np.ndarray = np.random.default_rng(0).integers(-128, 128, (16, 16, 3, 3)).astype(float)
    weights[:, 0, 0, :2] = (-128, 127)
    return weights


def error_of(text: str, in_low_mode: bool = True) -> float:
    """The error of a convolution with such weights; runs in a child."""
    target = Target.parse(text)
    if not in_low_mode:
        settings._NUMBER_OF["low"] = 0
    with tempfile.TemporaryDirectory() as name:
        model = model_of(CONV, {"w": whole_weights()}, Path(name))
        executable = BACKEND.compile(model, target, CompileContext(2, Path(name)))
        given = np.random.default_rng(1).standard_normal((1, 16, 12, 12)).astype(np.float32)
        made = np.full((1, 16, 12, 12), np.nan, np.float32)
        executable.bind([given], [made])
        executable.run()
        executable.close()
        (wanted,) = outputs_of(model, {"x": given})
        return float(np.abs(made - wanted).max() / np.abs(wanted).max())


@needs_mnn
def test_int8_rounds_inputs_while_it_runs() -> None:
    assert run_in_child(error_of, "mnn") < 1e-5
    assert 1e-4 < run_in_child(error_of, "mnn -precision=int8") < 0.03


@needs_mnn
def test_integer_weights_alone_compute_in_float() -> None:
    # Why int8 needs the low mode of memory, given as a number.
    assert run_in_child(error_of, "mnn -precision=int8", False) < 1e-5


def test_int8_is_another_target_with_costs_of_its_own() -> None:
    assert canonical(INT8, 2) != canonical(Target("mnn"), 2)
    found = BACKEND.arithmetic(INT8)
    assert (found.numbers, found.in_file) == ("int8", False) and found.sense
    assert settings.converter_words(INT8) and not settings.converter_words(Target("mnn"))
    assert (settings.precision(INT8), settings.modes(INT8)) == ("normal", {"memory": 2})
    lines = BACKEND.opening_lines(INT8, 2)
    assert lines is not None and '"--weightQuantBits", "8"' in lines and '"memory": 2' in lines


def test_int8_decides_the_mode_of_memory() -> None:
    reason = BACKEND.check_target(INT8.with_options(memory="high"))
    assert reason is not None and "leave -memory out" in reason
    assert BACKEND.check_target(INT8) is None and BACKEND.check_target(Target("mnn")) is None


def test_tuning_binds_no_threads_to_cores() -> None:
    assert "power" not in tunable_options(Target("mnn"), 4)
    assert "power" in {option.name for option in backend_of(Target("mnn")).options}


def test_regions_without_full_convolutions_and_products_are_refused() -> None:
    model = ir.from_onnx_text(NODES)
    for name, shape in {"d": (16, 1, 3, 3), "v": (16, 4, 1, 1), "w": (16, 16, 3, 3)}.items():
        value = next(v for n in model.graph for v in n.inputs if v is not None and v.name == name)
        value.const_value = ir.tensor(np.ones(shape, np.float32), name=name)
        value.shape, value.dtype = ir.Shape(shape), ir.DataType.FLOAT
        model.graph.register_initializer(value)
    index = GraphIndex.from_ir(model)
    reason = BACKEND.refuse_region(index, 0b0011, INT8)
    assert reason is not None and "without -precision=int8" in reason
    assert BACKEND.refuse_region(index, 0b0011, Target("mnn")) is None
    assert BACKEND.refuse_region(index, 0b0111, INT8) is None
    assert BACKEND.refuse_region(index, 0b1000, INT8) is None

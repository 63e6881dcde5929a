"""Ranges of activations by each method of `-calibrate`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from collage.backends.contract import SubModel
from collage.backends.numerics.tensor_files import write_samples
from collage.backends.quantization.calibration import METHODS, least_squares
from collage.backends.registry import check_options, resolve
from collage.partitioner.target import Target
from tests.backends.quantization.test_quantize import error_of, mlp, quantized


def _with_rare_values(folder: Path) -> SubModel:
    """Two products whose input has one large value in all samples together."""
    model = mlp(folder)
    random = np.random.default_rng(3)
    samples = []
    for number in range(400):
        x = random.standard_normal((4, 16)).astype(np.float32)
        x[0, 0] = 30.0 if number == 0 else x[0, 0]
        samples.append({"x": x})
    write_samples(folder / "rare.npz", samples)
    return replace(model, calibration=folder / "rare.npz")


def _input_scale(made: SubModel) -> float:
    """The step of the input's integers."""
    graph = ir.load(made.path).graph
    node = next(n for n in graph if n.op_type == "QuantizeLinear" and n.inputs[0] in graph.inputs)
    scale = node.inputs[1]
    assert scale is not None and scale.const_value is not None
    return float(scale.const_value.numpy())


@pytest.mark.slow
def test_a_rare_value_is_cut_by_percentile_and_entropy(tmp_path: Path) -> None:
    scales = {}
    for method in METHODS:
        (folder := tmp_path / method).mkdir()
        target = Target.parse(f"onnxruntime -quant=static_int8 -calibrate={method}")
        made = quantized(_with_rare_values(folder), target, folder)
        scales[method] = _input_scale(made)
        assert np.isfinite(error_of(made, mlp(folder)))
    assert scales["minmax"] == pytest.approx((30.0 + 4.0) / 255, rel=0.1)
    assert max(scales["percentile"], scales["entropy"]) < 0.7 * scales["minmax"]
    # To cut this one would err more than all steps together.
    assert 0.9 < scales["mse"] / scales["minmax"] <= 1.01


def test_least_squares_cuts_where_that_errs_less() -> None:
    random = np.random.default_rng(0)
    normal = random.standard_normal(100_000).astype(np.float32)
    uniform = random.uniform(-1, 1, 100_000).astype(np.float32)
    rare = np.append(random.standard_normal(1_000_000), 20.0).astype(np.float32)
    found = []
    for values in (normal, uniform, rare):
        counts, edges = np.histogram(values, 2048)
        low, high = least_squares(counts, edges, values.min(), values.max())
        found.append((float(high) - float(low)) / (float(values.max()) - float(values.min())))
    assert found[1] > 0.95  # nothing is rare
    assert found[2] < 0.8 * found[1]
    assert 0.6 < found[0] <= 1.0


@pytest.mark.parametrize("values", [np.zeros(10), np.ones(10), -np.ones(10)])
def test_a_range_holds_zero_and_what_is_constant(values: np.ndarray) -> None:
    counts, edges = np.histogram(values, 64, range=(-1, 1))
    low, high = least_squares(counts, edges, values.min(), values.max())
    assert low <= 0 <= high
    assert np.isfinite(low) and np.isfinite(high)


def test_the_default_is_what_it_was_and_others_are_told_apart() -> None:
    plain, minmax, entropy = (
        Target.parse(f"openvino -quant=static_int8{more}")
        for more in ("", " -calibrate=minmax", " -calibrate=entropy")
    )
    names = []
    for target in (plain, minmax, entropy):
        preparation = resolve(target).preparation(target)
        assert preparation is not None
        names.append(str(preparation))
    assert names[0] == names[1] != names[2]
    assert "ranges" not in names[0].replace("ranges of 8 bits", "")


def test_ranges_go_with_static_int8_alone() -> None:
    for text in ("openvino -calibrate=mse", "openvino -quant=weights_int8 -calibrate=mse"):
        target = Target.parse(text)
        reason = check_options(target).check_target(target)
        assert reason is not None and "goes with -quant=static_int8" in reason


def test_a_mix_keeps_the_method_and_its_float_form_has_none() -> None:
    target = Target.parse("openvino -quant=static_int8 -calibrate=mse")
    backend = resolve(target)
    assert backend.mixes_with(target, Target.parse("openvino"))
    assert not backend.mixes_with(target, Target.parse("openvino -calibrate=mse"))
    assert backend.unprepared(target) == Target.parse("openvino")
    mixed = backend.mix(target, 0b1111, 0b0011)
    assert mixed.option("calibrate", "") == "mse" and mixed.option("float", "") == "0-1"

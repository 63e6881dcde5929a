"""Values of Sigmoid that are small beside its range."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import collage
from collage.artifact.verification import ValueDigest
from collage.backends.numerics.comparison import ROUNDED, Ranged, output_error
from collage.model.reference import ingest
from collage.model.rounded_values import rounded_values, with_rounding
from tests.tuning import tuned

_TEXT = """<ir_version: 10, opset_import: ["" : 18]>
g (float[1, 64] x) => (float[8, 8] small, float[2, 64] joined, float[1, 64] doubled, float[1, 64] large)
<float bias = {-11.3}, int64[2] square = {8, 8}, float two = {2}> {
    [moved] moved = Add(x, bias)
    [shares] shares = Sigmoid(moved)
    [small] small = Reshape(shares, square)
    [others] others = Sigmoid(x)
    [joined] joined = Concat <axis = 0> (shares, others)
    [doubled] doubled = Mul(shares, two)
    [large] large = Identity(others)
}"""


def _value() -> np.ndarray:
    return np.full((4, 4), 1.2e-5, np.float32)


def _ranged(value: np.ndarray) -> Ranged:
    found = with_rounding({"y": value}, ["y"])["y"]
    assert isinstance(found, Ranged)
    return found


def test_what_passes_on_or_joins_values_of_sigmoid_is_rounded(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(_TEXT), tmp_path / "m.onnx")
    model, _ = ingest(tmp_path / "m.onnx", tmp_path / "work", {})
    found = rounded_values(model.index)
    assert {"shares", "small", "joined", "large"} <= found
    assert "moved" not in found and "doubled" not in found


@pytest.mark.parametrize("off", [0.0, 2e-7, -3e-7])
def test_a_difference_of_rounding_is_no_error(off: float) -> None:
    wanted = _ranged(_value())
    assert output_error("max", [_value() + np.float32(off)], [wanted]) == 0.0
    assert ValueDigest.of(wanted).error_of(_value() + np.float32(off)) <= 1e-3


@pytest.mark.parametrize("wrong", [0.0, 5e-6, 3e-5, 0.5])
def test_any_other_difference_is_one(wrong: float) -> None:
    wanted, made = _ranged(_value()), np.full((4, 4), wrong, np.float32)
    assert output_error("max", [made], [wanted]) > 0.3
    assert ValueDigest.of(wanted).error_of(made) > 1e-2


def test_values_that_are_large_or_made_otherwise_are_compared_as_they_are() -> None:
    large = {"y": np.full(3, 1e3 * ROUNDED, np.float32), "z": _value(), "e": np.zeros(0, np.float32)}
    found = with_rounding(large, ["y", "e"])
    assert all(found[name] is value for name, value in large.items())
    odd = np.array([np.nan, 1e-6], np.float32)
    assert with_rounding({"y": odd}, ["y"])["y"] is odd


@pytest.mark.slow
def test_a_detector_that_sees_nothing_is_tuned(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]>
        g (float[1, 3, 64, 64] x) => (float[1, 1, 64, 64] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w)
            b = Relu(a)
            c = Conv (b, v)
            d = Add(c, low)
            y = Sigmoid(d)
        }""")
    for name, value in {
        "w": random.standard_normal((16, 3, 3, 3)),
        "v": random.standard_normal((1, 16, 1, 1)) / 50,
        "low": np.array(-12.0),
    }.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float32), name))
    artifact = tuned(model, ["onnxruntime", "openvino"], tmp_path, time_limit_s=5.0)
    singles = {row["target"]: row for row in artifact.report["baselines"]}
    assert all(row["latency_us"] for row in singles.values()), singles
    with collage.load(artifact.path) as session:
        assert session.run(None, {"x": np.zeros((1, 3, 64, 64), np.float32)})[0].max() < 1e-4

"""Values of Sigmoid that are small beside its range."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import collage
from collage.artifact.verification import ValueDigest
from collage.backends.numerics.comparison import ROUNDED, Ranged, output_error
from collage.model.reference import ingest
from collage.model.rounded_values import Rounding, needed, rounded_values, with_rounding
from tests.tuning import tuned

_TEXT = """<ir_version: 10, opset_import: ["" : 18]>
g (float[1, 64] x) => (
    float[8, 8] small, float[2, 64] joined, float[1, 64] moved_again, float[1, 64] large, float[64, 2] turned,
    float[2, 64] mixed, float[1, 64] first, float[1, 64] apart, float[2, 64] unequal, float[1, 64] sum
) <float bias = {-11.3}, int64[2] square = {8, 8}, float two = {-2}, float[2, 1] each = {1, 2},
   int64[1] none = {0}, int64[1] one = {1}> {
    [moved] moved = Add(x, bias)
    [shares] shares = Sigmoid(moved)
    [small] small = Reshape(shares, square)
    [others] others = Sigmoid(x)
    [joined] joined = Concat <axis = 0> (shares, others)
    [doubled] doubled = Mul(two, shares)
    [moved_again] moved_again = Sub(bias, doubled)
    [large] large = Identity(others)
    [product] product = Mul(shares, others)
    [both] both = Concat <axis = 0> (product, doubled)
    [turned] turned = Transpose(both)
    [mixed] mixed = Concat <axis = 0> (shares, doubled)
    [first] first = Slice(joined, none, one)
    [apart] apart = Slice(both, none, one)
    [unequal] unequal = Mul(shares, each)
    [sum] sum = Add(shares, others)
}"""


def _value() -> np.ndarray:
    return np.full((4, 4), 1.2e-5, np.float32)


def _ranged(value: np.ndarray) -> Ranged:
    found = with_rounding({"y": value}, {"y": Rounding()}, ["y"])["y"]
    assert isinstance(found, Ranged)
    return found


def _rounded(text: str, folder: Path) -> Mapping[str, Rounding]:
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    model, _ = ingest(folder / "m.onnx", folder / "work", {})
    return rounded_values(model.index)


def test_what_passes_on_or_joins_values_of_sigmoid_is_rounded(tmp_path: Path) -> None:
    found = _rounded(_TEXT, tmp_path)
    plain = ("shares", "small", "joined", "large", "first")
    assert all(found[name] == Rounding() for name in plain)
    assert "moved" not in found


def test_constants_move_and_multiply_the_step(tmp_path: Path) -> None:
    found = _rounded(_TEXT, tmp_path)
    assert found["doubled"] == found["moved_again"] == Rounding(factor=2.0)
    assert "unequal" not in found  # its elements have different steps
    assert "mixed" not in found and "sum" not in found


def test_a_product_is_rounded_as_its_factors_are_large(tmp_path: Path) -> None:
    found = _rounded(_TEXT, tmp_path)
    assert found["product"].is_product and {"product", "turned", "both"} <= found.keys()
    assert "apart" not in found  # a part of it may have a smaller step
    shares, others = found["product"].sources
    assert set(needed(["product"], found)) == {"product", shares, others}
    assert set(needed(["turned"], found)) == {"turned", shares, others}
    small, other = np.full((1, 64), 1e-4, np.float32), np.full((1, 64), 2e-4, np.float32)
    values = {shares: small, others: other, "product": small * other}
    (ranged,) = with_rounding(values, found, ["product"]).values()
    assert isinstance(ranged, Ranged)
    assert ranged.rounding == pytest.approx(ROUNDED * 3e-4, rel=1e-2)
    # Rounding of the factors moves it by 0.6 %.
    assert output_error("max", [values["product"] * np.float32(1.005)], [ranged]) == 0.0
    assert output_error("max", [values["product"] * np.float32(1.02)], [ranged]) > 1e-2


def test_a_long_chain_of_products_is_read_at_once() -> None:
    """Each is the square of the one before."""
    count = 3000
    rounded = {"v0": Rounding()} | {
        f"v{i + 1}": Rounding((f"v{i}", f"v{i}"), is_product=True) for i in range(count)
    }
    values = {name: np.full(2, 1e-5, np.float32) for name in rounded}
    found = with_rounding(values, rounded, [f"v{count}"])
    assert found[f"v{count}"] is values[f"v{count}"]


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
    found = with_rounding(large, {"y": Rounding(), "e": Rounding()}, ["y", "z", "e"])
    assert all(found[name] is value for name, value in large.items())
    odd = np.array([np.nan, 1e-6], np.float32)
    assert with_rounding({"y": odd}, {"y": Rounding()}, ["y"])["y"] is odd


@pytest.mark.parametrize("step", [1e-9, ROUNDED, 1e-2])
def test_a_digest_takes_what_rounding_moves_and_no_more(step: float) -> None:
    value = np.full((4, 4), 30 * step, np.float32)
    digest = ValueDigest.of(Ranged(value, value - np.float32(step), value + np.float32(step)))
    assert digest.error_of(value + np.float32(step)) <= 1.001e-3
    assert digest.error_of(np.zeros_like(value)) > 2e-2


def test_bounds_of_ties_are_none_of_rounding() -> None:
    value = np.array([0.5, 1.0], np.float32)
    assert Ranged(value, value, value + 1).rounding == 0.0
    assert Ranged(value, value - np.float32(0.1), value + np.float32([0.1, 0.5])).rounding == 0.0
    endless = np.full(2, np.inf, np.float32)
    assert Ranged(value, -endless, endless).rounding == 0.0


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

"""Half precision: the reference rounds once, and ONNX Runtime supports nodes that it casts itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import collage
from collage.backends.numerics.half_precision import is_half, widen
from collage.backends.numerics.reference import run_reference
from collage.backends.registry import check_options
from collage.backends.sandbox.run import run_in_child
from collage.model.reference import ingest
from collage.partitioner.target import Target
from tests.tuning import tuned

H = np.float16
_HEAD = '<ir_version: 10, opset_import: ["" : 18]>'


def _parsed(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"{_HEAD} {text}")
    made = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    model.graph.initializer.extend(made)
    return model


def test_the_reference_rounds_once(tmp_path: Path) -> None:
    """Rounded after the sum, which half precision has in steps of 2, nothing would be left of x."""
    text = "g (float16[4] x) => (float16[4] y, float16[4] s) { s = Add(x, big) y = Sub(s, big) }"
    onnx.save(_parsed(text, big=np.array([2049], H)), tmp_path / "m.onnx")
    x = np.array([0.25, 0.5, -0.3, 0.1], H)
    found = run_in_child(run_reference, tmp_path / "m.onnx", {"x": x}, ["y", "s"])
    assert {name: value.dtype for name, value in found.items()} == {"y": H, "s": H}
    np.testing.assert_allclose(found["y"], x, atol=2e-4)
    np.testing.assert_array_equal(found["s"], (x.astype(np.float32) + H(2049)).astype(H))
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_weights_beside_the_file_and_values_past_its_range(tmp_path: Path) -> None:
    text = "g (float16[1, 64] x) => (float16[1, 64] y, float[1, 64] z) { y = MatMul(x, w) z = Cast <to = 1> (y) }"
    weights = (np.eye(64) * 300).astype(H)
    onnx.save(
        _parsed(text, w=weights),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    x = np.full((1, 64), 1000, H)
    found = run_in_child(run_reference, tmp_path / "m.onnx", {"x": x}, ["y", "z"])
    assert np.isposinf(found["y"]).all()
    np.testing.assert_array_equal(found["z"], np.full((1, 64), 3e5, np.float32))


def test_bodies_and_attributes_are_widened() -> None:
    model = _parsed(
        """g (float16[2] x, bool c) => (float16[2] y) {
            k = Constant <value = float16[2] {1, 2}> ()
            y = If (c) <
                then_branch = a () => (float16[2] t) { u = Cast <to = 10> (k) t = Add(x, u) },
                else_branch = b () => (float16[2] e) { e = Identity(x) }
            >
        }"""
    )
    assert is_half(model)
    assert widen(model) == ["y"]
    assert not is_half(model)
    onnx.checker.check_model(model, full_check=True)


def test_a_model_without_it_is_left_as_it_is() -> None:
    assert not is_half(_parsed("g (bfloat16[2] x) => (float[2] y) { y = Cast <to = 1> (x) }"))


_NET = """g (float16[1, 3, 32, 32] x) => (float16[1, 10] y) {
    a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
    b = Relu(a)
    c = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b)
    d = GlobalAveragePool(c)
    e = Flatten(d)
    f = MatMul(e, v)
    y = Softmax(f)
}"""


def _net() -> onnx.ModelProto:
    random = np.random.default_rng(2)
    w = (random.standard_normal((16, 3, 3, 3)) / 5).astype(H)
    return _parsed(_NET, w=w, v=random.standard_normal((16, 10)).astype(H))


@pytest.mark.parametrize(("text", "taken"), [("onnxruntime", True), ("mnn", False)])
def test_onnx_runtime_takes_what_its_sessions_cast(text: str, taken: bool, tmp_path: Path) -> None:
    onnx.save(_net(), tmp_path / "m.onnx")
    model, _ = ingest(tmp_path / "m.onnx", tmp_path)
    index, target = model.index, Target.parse(text)
    refusals = [check_options(target).supports(index, node.index, target) for node in index.nodes]
    assert (refusals == [None] * len(refusals)) == taken


@pytest.mark.slow
def test_a_net_of_half_precision_runs_on_either_runtime(tmp_path: Path) -> None:
    made = tuned(_net(), ["onnxruntime", "openvino"], tmp_path, strategy="single")
    assert not any("infeasible" in baseline for baseline in made.report["baselines"])
    x = np.random.default_rng(4).standard_normal((1, 3, 32, 32)).astype(H)
    (wanted,) = run_in_child(run_reference, tmp_path / "m.onnx", {"x": x}, ["y"]).values()
    with collage.load(made.path, cache_dir=False) as session:
        (y,) = session.run(["y"], {"x": x})
    np.testing.assert_allclose(y, wanted, atol=1e-3)


def test_optional_values_are_widened_too() -> None:
    model = _parsed("g (float16[2] x) => (float16[2] y) { o = Optional(x) y = OptionalGetElement(o) }")
    held = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT16, [2])
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("type", held))
    assert widen(model) == ["y"]
    assert not is_half(model)

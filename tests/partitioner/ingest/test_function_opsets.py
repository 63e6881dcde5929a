"""Functions of another opset than the model's: both get one, or the operator that has none is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from collage.partitioner.errors import ModelError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from tests.partitioner.running import run

X = np.array([-1, 2], np.float32)
_CALL = 'g (float[2] x) => (float[2] y) {{ h = mine.f(x)  y = {} }} <domain: "mine", opset_import: ["" : {}]> f (a) => (b) {{ b = {} }}'


def _model(text: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}, "mine" : 1]> {text}')


@pytest.mark.parametrize(
    ("model", "opset", "function", "inside", "after"),
    [
        (17, 18, "Relu(a)", "Neg(h)", 17),
        (18, 17, "Relu(a)", "Neg(h)", 18),
        (17, 18, "Split<num_outputs = 1>(a)", "Neg(h)", 18),
        (18, 17, "ReduceMax<axes = [0], keepdims = 0>(a)", "Neg(h)", 17),
        (12, 13, "Softmax(a)", "ReduceSum<axes = [0], keepdims = 0>(h)", 13),
    ],
)
def test_functions_and_the_model_get_one_opset(
    model: int, opset: int, function: str, inside: str, after: int, tmp_path: Path
) -> None:
    proto = _model(_CALL.format(inside, opset, function), model)
    if "Reduce" in inside + function:
        proto.graph.output[0].type.tensor_type.shape.ClearField("dim")
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    info = normalize(tmp_path / "m.onnx", tmp_path / "out", {})
    found = Model.open(info.path)
    assert found.ir.opset_imports[""] == after and not found.ir.functions
    exp = np.exp(X - X.max())
    wanted = {
        "Relu(a)": -np.maximum(X, 0),
        "Split<num_outputs = 1>(a)": -X,
        "ReduceMax<axes = [0], keepdims = 0>(a)": -X.max(),
        "Softmax(a)": np.sum(exp / exp.sum()),
    }
    np.testing.assert_allclose(run(info.path, {"x": X})["y"], wanted[function], rtol=1e-6)


def test_function_of_an_opset_that_nothing_fits_is_refused(tmp_path: Path) -> None:
    split = "Split<num_outputs = 1>(h)"
    proto = _model(_CALL.format(split, 17, "ReduceMax<axes = [0]>(a)"), 18)
    unused = onnx.helper.make_function(
        "mine",
        "unused",
        ["a"],
        ["b"],
        [onnx.helper.make_node("Relu", ["a"], ["b"])],
        proto.opset_import[:1],
    )
    proto.functions.insert(0, unused)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=r"function 'f' is of opset 17 .*ReduceMax.*with one opset"):
        normalize(tmp_path / "m.onnx", tmp_path / "out", {})

"""Forms of models that ONNX Runtime takes and the ONNX checker refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from collage.partitioner.ingest.normalize import normalize
from tests.partitioner.running import run

X = np.array([-1, 2], np.float32)
_WEIGHTS = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
_IF = """
    g (float[2] x) => (float[2] y) {
        s = ReduceSum<keepdims = 0>(x)
        c = Cast<to = 9>(s)
        y = If(c) <then_branch = t () => (float[2] o) { o = Relu(x) }, else_branch = e () => (float[2] p) { p = Neg(x) }>
    }
"""


def _model(text: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> {text}')


def _no_names() -> onnx.ModelProto:
    model = _model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.graph.name = ""
    return model


def _old_weights() -> onnx.ModelProto:
    model = _model(_WEIGHTS, 9)
    model.ir_version = 3
    return model


def _weights_twice() -> onnx.ModelProto:
    model = _model(_WEIGHTS)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([5, 6], np.float32), "w"))
    return model


def _long_domain(of_nodes: bool, of_imports: bool) -> onnx.ModelProto:
    model = _model(_IF)
    if of_imports:
        model.opset_import[0].domain = "ai.onnx"
    if of_nodes:
        for node in model.graph.node:
            node.domain = "ai.onnx"
    return model


def _imports_twice() -> onnx.ModelProto:
    model = _model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.opset_import.add(domain="ai.onnx", version=13)
    return model


def _untyped_output() -> onnx.ModelProto:
    model = _model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.graph.output[0].ClearField("type")
    return model


def _untyped_weights() -> onnx.ModelProto:
    model = _model("g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    model.graph.input[1].ClearField("type")
    return model


def _metadata_twice() -> onnx.ModelProto:
    model = _model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    for value in ("1", "2"):
        model.metadata_props.add(key="stride", value=value)
    return model


@pytest.mark.parametrize(
    "made",
    [
        _no_names,
        _old_weights,
        _weights_twice,
        lambda: _long_domain(of_nodes=True, of_imports=True),
        lambda: _long_domain(of_nodes=True, of_imports=False),
        lambda: _long_domain(of_nodes=False, of_imports=True),
        _imports_twice,
        _untyped_output,
        _untyped_weights,
        _metadata_twice,
    ],
    ids=[
        *("no-names", "old-weights", "weights-twice", "domain", "domain-of-nodes", "domain-of-imports"),
        *("imports-twice", "untyped-output", "untyped-weights", "metadata-twice"),
    ],
)
def test_forms_of_onnx_runtime_are_taken(made: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(made().SerializeToString())
    info = normalize(tmp_path / "m.onnx", tmp_path / "out", {})
    for x in (X, -X):
        wanted, found = run(tmp_path / "m.onnx", {"x": x}), run(info.path, {"x": x})
        assert list(found) == list(wanted)
        np.testing.assert_array_equal(found["y"], wanted["y"])


def test_bodies_are_taken_as_the_main_graph_is(tmp_path: Path) -> None:
    """ONNX Runtime asks the checker about nodes with bodies."""
    model = _model(_IF)
    (tmp_path / "plain.onnx").write_bytes(model.SerializeToString())
    model.opset_import[0].domain = "ai.onnx"
    for body in (attribute.g for attribute in model.graph.node[-1].attribute):
        body.name = ""
        for node in body.node:
            node.domain = "ai.onnx"
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    info = normalize(tmp_path / "m.onnx", tmp_path / "out", {})
    for x in (X, -X):
        wanted, found = run(tmp_path / "plain.onnx", {"x": x}), run(info.path, {"x": x})
        np.testing.assert_array_equal(found["y"], wanted["y"])


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2] x) => (float[2] y) { y = Relu(x) }",
        "g (float[2] x) => (float[2] y) <float[2] y_2 = {1, 2}> { y = Add(x, y_2) }",
        "g (float[2] y) => (float[2] y) { z = Relu(y) }",
    ],
)
def test_output_that_is_there_twice_gets_two_names(text: str, tmp_path: Path) -> None:
    model = _model(text)
    model.graph.output.extend([model.graph.output[0]] * 2)
    if model.graph.node[0].output[0] != "y":
        model.graph.output.insert(
            0, onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [2])
        )
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    name = model.graph.input[0].name
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    info = normalize(tmp_path / "m.onnx", tmp_path / "out", {})
    found = run(info.path, {name: X})
    names = list(found)
    assert [n[:1] for n in names] == [o.name for o in session.get_outputs()] and len(set(names)) == len(
        names
    )
    for value, wanted in zip(found.values(), session.run(None, {name: X}), strict=True):
        np.testing.assert_array_equal(value, wanted)
    assert sum("output 'y' is there more than once" in note for note in info.warnings) == 2

"""Runtimes' traps with models as people ship them, and samples whose shapes differ."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import openvino
import pytest

from collage.backends.contract import CompileContext, Executable, SubModel
from collage.backends.measurement.measure import measure
from collage.backends.measurement.request import MeasureRequest
from collage.backends.numerics.seeded import seeded_inputs
from collage.backends.numerics.tensor_files import write_samples
from collage.backends.onnxruntime.backend import OnnxRuntimeBackend
from collage.backends.openvino.backend import OpenVinoBackend
from collage.model.reference import ingest
from collage.partitioner.cost import Measured
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from tests.shipped_models.test_ingest import saved

LOOP = """
    m (float[2] x, int64 M) => (float[1] y, float[t, 2] hist) <float[1] half = {0.5}> {
        a = Tanh(x)
        b, hist = Loop(M, , a) <body = g (int64 i, bool c, float[2] v) => (bool d, float[2] w, float[2] s) {
            w = Mul(v, half)
            s = Identity(w)
            d = Identity(c)
        }>
        y = ReduceSum<keepdims = 0>(hist, axes)
    }
"""


def compiled(
    backend: OnnxRuntimeBackend | OpenVinoBackend, name: str, path: Path, folder: Path
) -> Executable:
    model, info = ingest(path, folder)
    outputs = tuple(model.index.values[n] for n in model.index.outputs)
    sub_model = SubModel(model.path, info.inputs, outputs)
    folder.mkdir(exist_ok=True)
    return backend.compile(sub_model, Target.parse(name), CompileContext(1, folder))


def _loop(folder: Path) -> Path:
    text = LOOP.replace("ReduceSum<keepdims = 0>(hist, axes)", "ReduceSum<keepdims = 1>(hist)")
    return saved(text.replace("float[1] y", "float[1, 1] y"), folder)


def test_loop_of_no_trips_after_one_of_three_keeps_nothing(tmp_path: Path) -> None:
    executable = compiled(OnnxRuntimeBackend(), "onnxruntime", _loop(tmp_path), tmp_path / "c")
    trips = np.array(3, np.int64)
    executable.bind([np.ones(2, np.float32), trips], [None, None])
    executable.run()
    assert executable.results[1].shape == (3, 2)
    trips[()] = 0
    executable.run()
    assert executable.results[1].shape == (0, 2)
    assert float(executable.results[0].reshape(-1)[0]) == 0.0
    executable.close()


def test_openvino_refuses_loops_that_may_make_no_trip(tmp_path: Path) -> None:
    model, _ = ingest(_loop(tmp_path), tmp_path)
    position = next(n.index for n in model.index.nodes if n.op_type == "Loop")
    reason = OpenVinoBackend().supports(model.index, position, Target.parse("openvino"))
    assert reason is not None and "may make no trip" in reason


@pytest.mark.slow
def test_openvino_refuses_such_loops_in_bodies_too(tmp_path: Path) -> None:
    """In a branch of If it keeps the latest result as well."""
    text = """
        m (float[2] x, int64 M, bool c) => (float[t, 2] y) <float[1] half = {0.5}, int64[1] first = {0}> {
            a = Tanh(x)
            y = If(c) <
                then_branch = th () => (float[u, 2] q) {
                    b, q = Loop(M, , a) <
                        body = g (int64 i, bool k, float[2] v) => (bool d, float[2] w, float[2] s) {
                            w = Mul(v, half)  s = Identity(w)  d = Identity(k)
                        }
                    >
                },
                else_branch = el () => (float[1, 2] e) { e = Unsqueeze(a, first) }
            >
        }
    """
    model, _ = ingest(saved(text, tmp_path), tmp_path)
    (position,) = [n.index for n in model.index.nodes if n.op_type == "If"]
    reason = OpenVinoBackend().supports(model.index, position, Target.parse("openvino"))
    assert reason is not None and "in a body may make no trip" in reason
    request = openvino.Core().compile_model(str(model.path), "CPU").create_infer_request()
    feeds = [{"x": np.ones(2, np.float32), "M": np.array(m), "c": np.array(True)} for m in (3, 0)]
    # An upgrade that mends it fails here.
    assert [request.infer(feed)[0].shape for feed in feeds] == [(3, 2), (3, 2)]


def test_openvino_keeps_the_latest_result_of_a_loop_without_trips(tmp_path: Path) -> None:
    """The trap that the refusal is for; an upgrade that mends it fails here."""
    executable = compiled(OpenVinoBackend(), "openvino", _loop(tmp_path), tmp_path / "c")
    trips = np.array(3, np.int64)
    executable.bind([np.ones(2, np.float32), trips], [None, None])
    executable.run()
    trips[()] = 0
    executable.run()
    assert executable.results[1].shape == (3, 2)
    executable.close()


def test_onnxruntime_outputs_of_unknown_shape_come_in_model_order(tmp_path: Path) -> None:
    """A binding lists outputs in the order in which they were bound, and those with a buffer are bound first."""
    text = "m (float[4] x) => (int64[1, n] idx, float total) { idx = NonZero(x)  total = ReduceSum<keepdims = 0>(x) }"
    executable = compiled(OnnxRuntimeBackend(), "onnxruntime", saved(text, tmp_path), tmp_path / "c")
    total = np.zeros((), np.float32)
    executable.bind([np.array([0, 2, 0, 3], np.float32)], [None, total])
    executable.run()
    np.testing.assert_array_equal(executable.results[0], [[1, 3]])
    assert float(executable.results[1]) == 5.0
    executable.close()


def test_onnxruntime_output_of_free_shape_may_be_of_a_type_numpy_lacks(tmp_path: Path) -> None:
    text = "m (bfloat16[4] x, int64[2] s) => (bfloat16[a, b] y) { y = Reshape(x, s) }"
    executable = compiled(OnnxRuntimeBackend(), "onnxruntime", saved(text, tmp_path), tmp_path / "c")
    x = np.array([1, 2, 3.5, -1], dtype=ml_dtypes.bfloat16)
    executable.bind([x, np.array([2, 2])], [None])
    executable.run()
    np.testing.assert_array_equal(executable.results[0], x.reshape(2, 2))
    executable.close()


@pytest.mark.slow
def test_samples_whose_shapes_differ_are_measured(tmp_path: Path) -> None:
    specs = (TensorSpec("x", "float32", (None, 4)),), (TensorSpec("y", "float32", (None, 4)),)
    free = saved("m (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }", tmp_path)
    samples = [{"x": np.full((rows, 4), -1.0, np.float32)} for rows in (2, 3)]
    write_samples(tmp_path / "in.npz", samples)
    write_samples(tmp_path / "out.npz", [{"y": np.zeros_like(s["x"])} for s in samples])
    request = MeasureRequest(
        model=SubModel(free, *specs),
        target=Target.parse("onnxruntime"),
        inputs_path=tmp_path / "in.npz",
        expected_path=tmp_path / "out.npz",
        tolerance=1e-3,
        threads=1,
    )
    assert isinstance(measure(request).cost, Measured)


def test_seeded_inputs_know_the_names_of_the_field() -> None:
    specs = [
        TensorSpec("attention_mask", "int64", (2, 5)),
        TensorSpec("position_ids", "int64", (2, 5)),
        TensorSpec("past_key_values.0.key", "float32", (1, 2, 8, 4)),
        TensorSpec("x", "float32", (3,)),
        TensorSpec("speed", "float32", (1,)),
    ]
    named, plain = seeded_inputs(specs, 0), seeded_inputs(specs, 0, edition=0)
    assert (named["attention_mask"] == 1).all() and not (plain["attention_mask"] == 1).all()
    np.testing.assert_array_equal(named["position_ids"], [[0, 1, 2, 3, 4]] * 2)
    np.testing.assert_array_equal(named["past_key_values.0.key"], plain["past_key_values.0.key"] / 8)
    np.testing.assert_array_equal(named["x"], plain["x"])
    assert named["speed"] == 1 != plain["speed"]  # near 0 a speech model answers with minutes of sound


def test_seeded_inputs_know_masks_of_padding_and_lengths() -> None:
    """In PyTorch's masks true is what is left out, and a mean of no frames is NaN."""
    specs = [
        TensorSpec("src_key_padding_mask", "bool", (2, 5)),
        TensorSpec("x_lengths", "int64", (64,)),
        TensorSpec("decoder_position_ids", "int64", (1, 4)),
        TensorSpec("cache_position", "int64", (4,)),
        TensorSpec("strength", "int64", (64,)),
    ]
    made, plain = seeded_inputs(specs, 0), seeded_inputs(specs, 0, edition=0)
    assert not made["src_key_padding_mask"].any() and plain["src_key_padding_mask"].any()
    np.testing.assert_array_equal(made["x_lengths"], np.maximum(plain["x_lengths"], 1))
    np.testing.assert_array_equal(made["decoder_position_ids"], [[0, 1, 2, 3]])
    np.testing.assert_array_equal(made["cache_position"], [0, 1, 2, 3])
    np.testing.assert_array_equal(made["strength"], plain["strength"])

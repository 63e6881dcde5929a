"""Outputs that are labels: reduced within a share of them where `top1` asks for it, and else never."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import collage
from collage.backends.numerics.reference import reference_session, run_session
from tests.tuning import tuned

pytestmark = pytest.mark.slow
_EXACT, _REDUCED = "simulated -precision=f32 -speedup=0.15", "simulated -precision=bf16 -speedup=1"
_SEGMENTING = """<ir_version: 9, opset_import: ["" : 18]>
g (float[1, 3, 64, 64] x) => (int64[1, 64, 64] labels) {
    a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w1)
    b = Relu(a)
    c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (b, w2)
    d = Relu(c)
    scores = Conv <kernel_shape = [1, 1]> (d, w3)
    labels = ArgMax <axis = 1, keepdims = 0> (scores)
}"""


def segmenting_model() -> onnx.ModelProto:
    """A class for each of 4,096 pixels; in bfloat16 some 20 of them come out otherwise."""
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(_SEGMENTING)
    shapes = {"w1": (16, 3, 3, 3), "w2": (16, 16, 3, 3), "w3": (5, 16, 1, 1)}
    for name, shape in shapes.items():
        scale = 1.5 / np.sqrt(np.prod(shape[1:]))
        weights = (random.standard_normal(shape) * scale).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return model


@pytest.mark.parametrize(("metric", "reduced"), [("top1", True), ("max", False)])
def test_a_share_of_labels_may_differ_where_that_is_asked_for(
    metric: str, reduced: bool, tmp_path: Path
) -> None:
    options = {"tolerance": 0.05, "metric": metric, "time_limit_s": 10.0}
    made = tuned(segmenting_model(), [_EXACT, _REDUCED], tmp_path, **options)
    parts = made.report["partitions"]
    assert any("bf16" in part["target"] for part in parts) == reduced
    x = np.random.default_rng(9).standard_normal((1, 3, 64, 64)).astype(np.float32)
    session = reference_session(tmp_path / "m.onnx")
    wanted = run_session(session, {"x": x}, ["labels"])["labels"]
    with collage.load(made.path, cache_dir=False) as loaded:
        (labels,) = loaded.run(["labels"], {"x": x})
    assert (0 < float(np.mean(labels != wanted)) <= 0.05) == reduced

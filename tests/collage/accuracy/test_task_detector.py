"""A detector that suppresses boxes in the model: how many it returns depends on the last bits of its scores.

The reduced target is simulated, as in `test_task`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import collage
from collage.backends.numerics.reference import reference_session, run_session
from collage.environments.environment import this_environment
from collage.runner import Runner
from collage.watch.comparison import compare
from tests.collage.accuracy.test_task import EXACT, REDUCED

_PLACES, _COUNT = 200, 60
_TEXT = f"""
<ir_version: 10, opset_import: ["" : 20]>
detector (float[1, 64] x) => (float[count, 4] boxes, float[count] scores, int64[count] labels)
<float[64, {_PLACES}] w, float[1, {_PLACES}, 4] places, int64[1] most = {{100}}, float[1] overlap = {{0.5}},
 float[1] least = {{0.5}}, int64[1] two = {{2}}, int64[1] flat = {{-1}}, int64[1] zero = {{0}}, int64[1] seven = {{7}}>
{{
    product = MatMul(x, w)
    all = Sigmoid(product)
    one = Unsqueeze(all, zero)
    chosen = NonMaxSuppression(places, one, most, overlap, least)
    column = Gather <axis = 1> (chosen, two)
    at = Reshape(column, flat)
    every = Squeeze(places, zero)
    boxes = Gather(every, at)
    flat_all = Reshape(all, flat)
    scores = Gather(flat_all, at)
    labels = Mod(at, seven)
}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("detector")
    random = np.random.default_rng(8)
    model = onnx.parser.parse_model(_TEXT)
    corner = random.uniform(0, 90, (_PLACES, 2))
    places = np.concatenate([corner, corner + random.uniform(2, 10, (_PLACES, 2))], axis=1)
    for name, array in (
        ("w", random.standard_normal((64, _PLACES)) / 8),
        ("places", places[None]),
    ):
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    onnx.save(model, path / "detector.onnx")
    np.savez(path / "inputs.npz", x=random.standard_normal((_COUNT, 1, 64)).astype(np.float32))
    return path


@pytest.mark.slow
def test_a_plan_that_finds_other_boxes_is_judged_by_its_boxes(folder: Path) -> None:
    artifact = collage.tune(
        folder / "detector.onnx",
        [EXACT, REDUCED],
        output=folder / "tuned.onnx",
        database=f"sqlite:///{folder / 'costs.db'}",
        inputs=folder / "inputs.npz",
        evaluate="map",
        max_drop=0.2,
        time_limit_s=12.0,
    )
    assert all("bf16" in part["target"] for part in artifact.report["partitions"])
    assert 0 <= artifact.report["evaluation"]["drop"] <= 0.2
    session = reference_session(folder / "detector.onnx")
    with np.load(folder / "inputs.npz") as stored, collage.load(artifact.path) as loaded:
        counts = [
            (
                len(loaded.run(["scores"], {"x": x})[0]),
                len(run_session(session, {"x": x}, ["scores"])["scores"]),
            )
            for x in stored["x"]
        ]
    assert any(ours != reference for ours, reference in counts)


@pytest.mark.slow
def test_a_watch_counts_other_boxes_as_the_tuning_did(folder: Path) -> None:
    artifact = collage.tune(
        folder / "detector.onnx",
        ["openvino -precision=bf16"],
        output=folder / "bf16.onnx",
        database=f"sqlite:///{folder / 'costs.db'}",
        inputs=folder / "inputs.npz",
        evaluate="map",
        max_drop=0.3,
        time_limit_s=8.0,
    )
    runner = Runner()
    here = this_environment(runner)
    errors = compare(artifact.path, here, here, runner).errors
    assert errors and all(error is not None and error <= 1.0 for error in errors)

"""Several watched artifacts: of a range of sizes, of given inputs, and one that cannot be measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from collage.backends.numerics.tensor_files import read_samples
from collage.cli.app import app
from collage.watch.plans import watched_plan
from collage.watch.watch_list import WatchList
from tests.collage.artifact.shaped_artifacts import shaped_artifact
from tests.collage.diagnosis.conftest import long_model
from tests.collage.shapes import models as shape_models
from tests.tuning import tuned

pytestmark = pytest.mark.slow


def folder_in(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


def test_one_that_cannot_be_measured_takes_nothing_from_the_others(tmp_path: Path) -> None:
    watching = WatchList(tmp_path / "watch")
    plain = tuned(
        long_model(10), ["onnxruntime"], folder_in(tmp_path, "p"), threads=1, strategy="single"
    )
    watching.add(plain.path, "plain")
    watching.add(plain.path, "damaged").artifact.write_bytes(b"no model")
    dims = {"batch": "1,3", "length": "2..12"}
    classes = [(None, ("onnxruntime",))]
    shaped = shaped_artifact(shape_models.chain(), folder_in(tmp_path, "s"), dims, classes)
    watching.add(shaped, "shaped")
    junit = tmp_path / "watch.xml"
    words = ["watch", "run", "--folder", str(tmp_path / "watch"), "--junit", str(junit), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 3, done.output
    found = {result["name"]: result for result in json.loads(done.stdout)}
    assert {name: result["verdict"] for name, result in found.items()} == {
        "damaged": "failed",
        "plain": "same",
        "shaped": "same",
    }
    assert "cannot be measured" in found["damaged"]["reason"]
    assert 'failures="1"' in junit.read_text(encoding="utf-8")
    (watched,) = [each for each in watching.list() if each.name == "shaped"]
    assert "onnxruntime" in watched.history[0]["key"]


def test_inputs_that_are_stored_with_an_artifact_are_taken(tmp_path: Path) -> None:
    """On seeded inputs this model makes NaN, so that tuning stores the given ones."""
    shape = [1, 16]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("Sqrt", ["x"], ["s"]), helper.make_node("Tanh", ["s"], ["y"])],
        "roots",
        values[:1],
        values[1:],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    given = np.full(shape, 4.0, np.float32)
    np.savez(tmp_path / "given.npz", x=given)
    artifact = tuned(
        model,
        ["onnxruntime"],
        tmp_path,
        threads=1,
        strategy="single",
        inputs=tmp_path / "given.npz",
    )
    plan = watched_plan(artifact.path, folder_in(tmp_path, "work"), 1)
    (sample,) = read_samples(plan.whole.samples, plan.whole.inputs)
    np.testing.assert_array_equal(sample["x"], given)

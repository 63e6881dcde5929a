"""A package of an artifact with free dimensions runs every size of its ranges, without Collage."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from collage.deploy import by_size, runner
from collage.deploy.package import PLAIN, write_package
from collage.deploy.packed import Packed
from collage.deploy.triton import CONFIG, write_triton_model
from collage.partitioner.errors import BadInputError
from collage.partitioner.tensor import TensorSpec
from collage.serving.engine import open_engine
from tests.collage.artifact.shaped_artifacts import shaped_artifact
from tests.collage.deploy.test_package import ALONE
from tests.collage.shapes import models as shape_models

_BOTH = ("onnxruntime -threads=1", "openvino -threads=1")
_DIMS = {"batch": "1,3", "length": "2..12"}
_IMAGE = {"batch": "1,2", "height": "8..12", "width": "8..32"}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes with mirrored targets."""
    classes = [(12, _BOTH), (None, tuple(reversed(_BOTH)))]
    return shaped_artifact(shape_models.chain(), tmp_path_factory.mktemp("shaped"), _DIMS, classes)


@pytest.fixture(scope="module")
def package(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(artifact, tmp_path_factory.mktemp("package") / "chain", threads=1).folder


def _feed(batch: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch * 100 + length)
    x = rng.standard_normal((batch, length, 8)).astype(np.float32)
    return {"x": x, "bias": rng.standard_normal(length).astype(np.float32)}


def _check(run: Any, artifact: Path, feed: dict[str, np.ndarray]) -> None:
    names = ["y", "z"]
    wanted = onnxruntime.InferenceSession(artifact.with_name("source.onnx")).run(names, feed)
    for mine, other in zip(run(names, feed), wanted, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("variant", [None, PLAIN])
def test_every_size_of_the_range_runs(artifact: Path, package: Path, variant: str | None) -> None:
    with runner.Session(package, variant=variant) as session:
        assert [node.shape for node in session.get_inputs()] == [["batch", "length", 8], ["length"]]
        for batch, length in [(1, 2), (3, 12), (2, 7), (1, 12), (3, 4), (3, 5)]:
            _check(session.run, artifact, _feed(batch, length))


@pytest.mark.slow
def test_each_class_has_its_partitions(package: Path) -> None:
    manifest = json.loads((package / runner.MANIFEST).read_text(encoding="utf-8"))
    variants = manifest["components"]["model"]["variants"]
    (name,) = (name for name in variants if name != PLAIN)
    (part,) = variants[name]["executor_info"][runner.NAMESPACE]["partitions"]
    small, large = part["classes"]
    assert (small["up_to"], large["up_to"]) == (12, None)
    targets = [part["partitions"][i]["target"] for one in (small, large) for i in one["partitions"]]
    assert targets == [*_BOTH, *reversed(_BOTH)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("feed", "message"),
    [
        (
            _feed(1, 13),
            "input 'x', axis 1: length is 13, and the package takes 2 to 12; tune the model",
        ),
        (_feed(4, 3), "input 'x', axis 0: batch is 4"),
        ({**_feed(1, 3), "bias": np.zeros(4, np.float32)}, "input 'bias', axis 0: length is 4, and"),
        ({**_feed(1, 3), "x": np.zeros((1, 3, 9), np.float32)}, "input 'x', axis 2: the size is 9"),
        ({**_feed(1, 3), "x": np.zeros((3, 8), np.float32)}, "input 'x' must have 3 axes"),
    ],
)
def test_a_shape_that_does_not_fit_is_told(
    package: Path, feed: dict[str, np.ndarray], message: str
) -> None:
    with runner.Session(package, check=False) as session, pytest.raises(ValueError) as raised:
        session.run(None, feed)
    assert message in str(raised.value)


@pytest.mark.slow
def test_it_runs_where_there_is_no_collage(artifact: Path, package: Path, tmp_path: Path) -> None:
    feed = _feed(2, 9)
    np.savez(tmp_path / "feed.npz", allow_pickle=False, **feed)
    command = [sys.executable, "-I", "-c", ALONE, package, tmp_path / "feed.npz", tmp_path / "made.npz"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "made.npz") as made:
        _check(lambda *_: [made[name] for name in made.files], artifact, feed)
    own = subprocess.run([sys.executable, "-I", package / "runner.py"], capture_output=True, text=True)
    assert own.returncode == 0 and "outputs right" in own.stdout, own.stderr


def test_what_is_copied_imports_numpy_alone() -> None:
    tree = ast.parse(Path(by_size.__file__).read_text(encoding="utf-8"))
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported == {"__future__", "math", "pathlib", "typing", "numpy"}


def test_outputs_are_new_arrays_as_those_of_onnx_runtime(tmp_path: Path) -> None:
    """OpenVINO does not compute a cast to the same type, so an input is an output."""
    free: tuple[int, shape_models.Dims] = shape_models.FLOAT, ["batch", "width"]
    cast = helper.make_node("Cast", ["x"], ["same"], to=shape_models.FLOAT)
    shape_models.save(tmp_path, [cast], {"x": free}, {"same": free})
    x_spec, same_spec = ({"name": n, "dtype": "float32", "shape": [None, None]} for n in ("x", "same"))
    alone = {
        "runtime": "openvino",
        "files": {"model": "m.onnx"},
        "settings": {"properties": {}, "ports": [0], "passed": {"0": 0}},
        "inputs": [x_spec],
        "outputs": [same_spec],
    }
    part = {
        "inputs": [{**x_spec, "shape": ["batch", "width"]}],
        "dims": {"batch": [1, 8, 1], "width": [1, 8, 1]},
        "classes": [{"up_to": None, "partitions": [0]}],
        "partitions": [alone],
    }
    x, weight = np.ones((2, 4), np.float32), np.ones(3, np.float32)
    parts = by_size.Parts(tmp_path, part, runner.PARTS, {"w": weight})
    (same,) = parts.run(["same"], {"x": np.frombuffer(x.tobytes(), "f4").reshape(2, 4)})
    assert (same == x).all()  # OpenVINO takes no memory that is read-only
    for names in (["same", "same"], ["x", "w", "w"]):
        made = parts.run(names, {"x": x})
        for array in made:
            array += 1
        assert all((array == 2).all() for array in (*made, x + 1, weight + 1))


def test_size_that_follows_from_others_is_checked(tmp_path: Path) -> None:
    axes = {"past": ("past", 2), "ids": ("length",), "mask": ("past + 2*length - 1",)}
    inputs = tuple(
        TensorSpec(name, "float32", tuple(d if isinstance(d, int) else None for d in dims))
        for name, dims in axes.items()
    )
    at_start = {"past": np.zeros((0, 2), "f4"), "ids": np.zeros(3, "f4"), "mask": np.zeros(5, "f4")}
    packed = Packed(
        partitions=(),
        inputs=inputs,
        outputs=inputs[1:2],
        constants={},
        samples=[at_start],
        tolerance=0.0,
        axes=axes,
        dims={"past": (0, 8, 1), "length": (1, 4, 1)},
        classes=((None, ()),),
    )
    written = json.loads(json.dumps(packed.by_size([], packed.classes)))
    parts = by_size.Parts(tmp_path, written, runner.PARTS, {})
    assert parts.run(["ids"], at_start)[0].shape == (3,)
    assert parts.run(["ids"], {**at_start, "past": np.zeros((4, 2)), "mask": np.zeros(9)})
    with pytest.raises(ValueError) as raised:
        parts.run(["ids"], {**at_start, "past": np.zeros((4, 2), "f4")})
    message = "input 'mask', axis 0: past + 2*length - 1 is 5, and must be 9"
    assert str(raised.value) == message


def test_mnn_takes_every_size_there(tmp_path: Path) -> None:
    path = shaped_artifact(shape_models.image(), tmp_path, _IMAGE, [(None, ("mnn", "onnxruntime"))])
    package = write_package(path, tmp_path / "package", threads=1).folder
    plain = onnxruntime.InferenceSession(tmp_path / "source.onnx")
    with runner.Session(package) as session:
        assert session.variant != PLAIN
        for batch, height, width in [(1, 8, 9), (2, 12, 30), (1, 8, 9), (2, 9, 16)]:
            x = np.random.default_rng(width).standard_normal((batch, 3, height, width))
            feed = {"x": x.astype(np.float32)}
            (made,), (wanted,) = session.run(None, feed), plain.run(None, feed)
            np.testing.assert_allclose(made, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_what_cannot_run_there_is_told(tmp_path: Path) -> None:
    targets = ("openvino -precision=bf16", "onnxruntime")
    path = shaped_artifact(shape_models.chain(), tmp_path, _DIMS, [(None, targets)])
    message = "on openvino -precision=bf16 cannot run with free dimensions without Collage yet"
    with pytest.raises(BadInputError, match=message):
        write_package(path, tmp_path / "package", threads=1)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["artifact", "package"])
def test_it_is_served_at_any_size(source: str, artifact: Path, request: pytest.FixtureRequest) -> None:
    engine = open_engine(
        request.getfixturevalue(source), 2, threads=1 if source == "artifact" else None
    )
    try:
        assert engine.instances == 2
        assert [port.shape for port in engine.inputs] == [(None, None, 8), (None,)]
        for batch, length in [(1, 3), (3, 11)]:
            _check(lambda names, feed: engine.infer(feed, names), artifact, _feed(batch, length))
    finally:
        engine.close()


@pytest.mark.slow
def test_tritons_model_has_free_sizes(artifact: Path, tmp_path: Path) -> None:
    folder, _ = write_triton_model(artifact, tmp_path, threads=1)
    text = (folder / CONFIG).read_text(encoding="utf-8")
    assert 'name: "x" data_type: TYPE_FP32 dims: [ -1, -1, 8 ]' in text

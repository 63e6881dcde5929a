"""An unpacked artifact is found again by its content, and unpacked anew where it is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.load_time import make_artifact
from collage.artifact.unpack import unpack
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.errors import ModelError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from tests.models import MODELS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One model as two artifacts, which differ only in where it is cut."""
    folder = tmp_path_factory.mktemp("parts")
    info = MODELS["ppocr_cls"]
    normalize(info.path, folder, info.dims)
    model = Model.open(folder / "model.onnx")
    ort = Target.parse("onnxruntime")
    whole = model.index.all_nodes
    first = 1
    plans = [
        Plan((Candidate(whole, ort),)),
        Plan((Candidate(first, ort), Candidate(whole & ~first, ort))),
    ]
    return [make_artifact(model, plan, folder / f"{i}" / "a.onnx") for i, plan in enumerate(plans)]


def test_parts_are_found_again_by_content(artifacts: list[Path], tmp_path: Path) -> None:
    cache, copy = tmp_path / "cache", tmp_path / "elsewhere.onnx"
    cache.mkdir()
    made = unpack(artifacts[0], tmp_path / "work", cache)
    written = {file: file.stat().st_mtime_ns for file in cache.glob("parts-*/**/*")}
    copy.write_bytes(artifacts[0].read_bytes())
    assert unpack(copy, tmp_path / "work", cache) == made
    assert {file: file.stat().st_mtime_ns for file in cache.glob("parts-*/**/*")} == written
    assert not (tmp_path / "work").exists()
    other = unpack(artifacts[1], tmp_path / "work", cache)
    assert len(other.models) == 2
    assert {model.path.parents[1] for model in (*made.models, *other.models)} == set(
        cache.glob("parts-*")
    )


def test_parts_are_the_same_without_a_cache(artifacts: list[Path], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cached = unpack(artifacts[1], tmp_path / "unused", cache)
    plain = unpack(artifacts[1], tmp_path / "work", None)
    assert (plain.targets, plain.inputs, plain.outputs) == (
        cached.targets,
        cached.inputs,
        cached.outputs,
    )
    for one, other in zip(plain.models, cached.models, strict=True):
        assert one.path.read_bytes() == other.path.read_bytes()
        assert (one.inputs, one.outputs) == (other.inputs, other.outputs)


def test_damaged_contents_are_made_anew(artifacts: list[Path], tmp_path: Path) -> None:
    made = unpack(artifacts[0], tmp_path / "work", tmp_path)
    (contents,) = tmp_path.glob("*/parts.json")
    contents.write_text(contents.read_text(encoding="utf-8")[:100], encoding="utf-8")
    again = unpack(artifacts[0], tmp_path / "work", tmp_path)
    assert again == made
    assert np.all([model.path.is_file() for model in again.models])


@pytest.mark.parametrize("damage", [b"", b"no archive", None])
def test_damaged_weights_among_outputs_are_made_anew(tmp_path: Path, damage: bytes | None) -> None:
    text = "agraph (float[8] x) => (float[8] y, float[2] c) <float[2] c = {1, 2}> { [n] y = Neg(x) }"
    source = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 20]> {text}')
    onnx.save(source, tmp_path / "model.onnx")  # normalizing would compute c by a node
    model = Model.open(tmp_path / "model.onnx")
    plan = Plan((Candidate(model.index.all_nodes, Target.parse("onnxruntime")),))
    artifact = make_artifact(model, plan, tmp_path / "a.onnx")
    unpack(artifact, tmp_path / "work", tmp_path)
    (kept,) = tmp_path.glob("parts-*/constants.npz")
    kept.write_bytes(kept.read_bytes()[:-20] if damage is None else damage)
    again = unpack(artifact, tmp_path / "work", tmp_path)
    assert {name: value.tolist() for name, value in again.constants.items()} == {"c": [1, 2]}


def test_file_that_is_no_artifact_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(ModelError, match="no artifact"):
        unpack(path, tmp_path / "work", tmp_path)

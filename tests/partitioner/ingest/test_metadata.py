"""The metadata of a model's author stays, and changes no digest."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.ingest.repairs import metadata


def _model(text: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> {text}')


def test_metadata_of_the_author_is_kept_and_no_digest_counts_it(tmp_path: Path) -> None:
    proto = _model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    (tmp_path / "bare.onnx").write_bytes(proto.SerializeToString())
    for key, value in (("stride", "32"), ("names", "{0: 'ä'}"), ("collage.plan", "of another")):
        proto.metadata_props.add(key=key, value=value)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    once = normalize(tmp_path / "m.onnx", tmp_path / "once", {})
    again = Model.open(normalize(once.path, tmp_path / "again", {}).path)
    assert dict(again.ir.metadata_props) == {"stride": "32", "names": "{0: 'ä'}"}
    bare = Model.open(normalize(tmp_path / "bare.onnx", tmp_path / "out", {}).path)
    assert again.sha256 == bare.sha256


def test_metadata_survives_a_newer_opset(tmp_path: Path) -> None:
    proto = _model("g (float[2] x) => (float[2] y) { y = Relu(x) }", onnx.defs.onnx_opset_version())
    proto.metadata_props.add(key="stride", value="32")
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    info = normalize(tmp_path / "m.onnx", tmp_path / "out", {})
    assert dict(Model.open(info.path).ir.metadata_props) == {"stride": "32"}


def test_metadata_that_is_too_large_is_left_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "MOST_BYTES", 64)
    proto = _model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    for key, value in (("blob", "a" * 65), ("stride", "32")):
        proto.metadata_props.add(key=key, value=value)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    info = normalize(tmp_path / "m.onnx", tmp_path / "out", {})
    assert dict(Model.open(info.path).ir.metadata_props) == {"stride": "32"}
    assert any("left out: blob" in note for note in info.warnings)

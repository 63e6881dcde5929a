"""Metadata read without the graph."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper

from collage.partitioner.emit.metadata import metadata_of
from tests.collage.shapes import models as shape_models


def test_metadata_is_read_as_onnx_reads_it(tmp_path: Path) -> None:
    model = shape_models.chain()
    model.model_version = 3
    told = {"collage.plan": "{}", "name": "größer", "empty": "", "long": "x" * 300}
    helper.set_model_props(model, told)
    onnx.save(model, tmp_path / "model.onnx")
    assert metadata_of(tmp_path / "model.onnx") == told


def test_another_file_has_no_metadata(tmp_path: Path) -> None:
    for name, content in [
        ("text", b"no model at all\n" * 40),
        ("empty", b""),
        ("cut", b"\x72\xff\xff"),
    ]:
        (tmp_path / name).write_bytes(content)
        assert metadata_of(tmp_path / name) in ({}, {"": ""})

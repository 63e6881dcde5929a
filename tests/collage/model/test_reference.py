"""Reading a model and computing its reference values end in time, with an error that says which took it."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import collage.deadline
from collage.model.reference import _MANY, Reference, ingest, made_in_child
from collage.partitioner.errors import OutOfTimeError
from collage.partitioner.ingest.normalize import NormalizedInfo
from tests.tuning import tuned


def endless() -> onnx.ModelProto:
    """A model that is read at once, and runs for days."""
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        m (float[4] x) => (float[4] y) <int64 trips = {1000000000000}, bool always = {1}, int64[1] shape = {4}> {
          turned = Loop(trips, always, x) <body = b (int64 i, bool c, float[4] v) => (bool d, float[4] w) {
            d = Identity(c)
            w = Cos(v)
          }>
          y = Reshape(turned, shape)
        }"""
    )


def _sleep(source: Path, destination: Path) -> NormalizedInfo | str:
    time.sleep(60)
    return "it woke"


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps whose time is up have half a second."""
    monkeypatch.setattr(collage.deadline, "_LEAST_S", 0.5)


@pytest.mark.usefixtures("_short")
def test_reading_ends_when_the_time_is_up_and_says_so(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(endless(), source)
    with pytest.raises(OutOfTimeError, match=r"reading the model was not done.*--time-limit"):
        made_in_child(_sleep, source, tmp_path / "made", (), None, until_s=0.0)


@pytest.mark.usefixtures("_short")
def test_the_reference_ends_when_the_time_is_up_and_says_so(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(endless(), source)
    model, _ = ingest(source, tmp_path)
    samples = [{"x": np.zeros(4, np.float32)}] * 3
    reference = Reference(model, samples, tmp_path / "values", until_s=0.0)
    with pytest.raises(
        OutOfTimeError, match=r"reference values of 3 samples was not done after.*--time-limit"
    ):
        reference.values(["y"])


def test_each_of_many_samples_has_its_own_values_in_order(tmp_path: Path) -> None:
    """Several are computed at once."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        m (float[4] x) => (float[4] y) { e = Exp(x) y = Neg(e) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    model, _ = ingest(tmp_path / "m.onnx", tmp_path)
    samples = [{"x": np.full(4, i / 100, np.float32)} for i in range(3 * _MANY)]
    values = Reference(model, samples, tmp_path / "values", keep_all=False).values(["y"])
    made = np.array([value["y"] for value in values])
    np.testing.assert_allclose(made, -np.exp([sample["x"] for sample in samples]), rtol=1e-6)


def test_values_that_come_after_the_first_are_not_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        m (float[4] x) => (float[4] y, float[4] z) { y = Exp(x) z = Neg(x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    model, _ = ingest(tmp_path / "m.onnx", tmp_path)
    sample = {"x": np.zeros(4, np.float32)}
    reference = Reference(
        model, [sample], tmp_path / "values", keep_all=False, until_s=time.monotonic() + 60
    )
    assert reference.values(["y"], last=True)[0]["y"].tolist() == [1.0] * 4
    monkeypatch.setattr(collage.deadline, "_LEAST_S", 1e-3)
    reference.until_s = -math.inf
    assert reference.values(["z"])[0]["z"].tolist() == [0.0] * 4


@pytest.mark.slow
def test_a_model_without_a_reference_in_its_limit_ends_in_time(tmp_path: Path) -> None:
    begin_s = time.monotonic()
    with pytest.raises(OutOfTimeError, match=r"computing the reference values of 2 samples"):
        tuned(endless(), ["onnxruntime", "openvino"], tmp_path, time_limit_s=2.0)
    assert time.monotonic() - begin_s <= 1.25 * 2 + 10 + 5

"""Partitions of a model with free dimensions, rewritten once for all sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from collage.model.free_regions import FreeRegions, form_of
from collage.model.reference import RUNTIME
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.binding import bind_sizes
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.runner import Runner
from tests.collage.shapes import models

_STATIC = "onnxruntime -quant=static_int8"


def _free(
    folder: Path, model: onnx.ModelProto | None = None, dims: Sequence[str] = ("batch", "length")
) -> Model:
    onnx.save(model or models.feed_forward(), folder / "m.onnx")
    path = folder / "m.onnx"
    return Model.open(normalize(path, folder / "model", {}, 13, RUNTIME, dims).path)


def _regions(folder: Path, free: Model, lengths: Sequence[int] = (2, 40, 40, 40)) -> FreeRegions:
    rng = np.random.default_rng(0)
    samples = [rng.standard_normal((1, n, 64)).astype(np.float32) for n in lengths]

    def values(names: Sequence[str]) -> list[Mapping[str, Any]]:
        assert list(names) == ["x"]
        return [{"x": sample} for sample in samples]

    return FreeRegions(free, folder / "free", values, Runner(), 1)


def _whole(free: Model, text: str) -> Plan:
    return Plan((Candidate(free.index.all_nodes, Target.parse(text)),))


def test_threads_change_no_form_and_float_has_none() -> None:
    free = Plan((Candidate(1, Target.parse("onnxruntime")), Candidate(2, Target.parse(_STATIC))))
    threaded = Plan((Candidate(2, Target.parse(f"{_STATIC} -threads=1")),))
    other = Plan((Candidate(2, Target.parse("openvino -quant=static_int8")),))
    assert form_of(free) == form_of(threaded) != form_of(other)
    assert not form_of(Plan((Candidate(1, Target.parse("mnn")),)))


@pytest.mark.slow
def test_one_set_of_scales_fits_the_samples_of_all_sizes(tmp_path: Path) -> None:
    free = _free(tmp_path)
    regions, plan = _regions(tmp_path, free), _whole(free, _STATIC)
    regions.rewrite([plan, _whole(free, f"{_STATIC} -threads=1")])
    assert regions.refusal(plan) is None
    made = regions.of(plan.partitions[0])
    assert made.prepared and made.inputs[0].shape == (None, None, 64)
    assert regions.of(_whole(free, f"{_STATIC} -threads=1").partitions[0]) is made
    session = onnxruntime.InferenceSession(made.path)
    plain = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    rng = np.random.default_rng(1)
    for length in (31, 3, 40, 2):
        feed = {"x": rng.standard_normal((3, length, 64)).astype(np.float32)}
        (mine,), (wanted,) = session.run(None, feed), plain.run(None, feed)
        assert 0 < np.abs(mine - wanted).max() <= 0.2 * np.abs(wanted).max()


@pytest.mark.slow
def test_a_bound_copy_has_the_integers_of_all_sizes(tmp_path: Path) -> None:
    free = _free(tmp_path)
    regions, plan = _regions(tmp_path, free), _whole(free, _STATIC)
    regions.rewrite([plan])
    bound = Model.open(bind_sizes(free.path, tmp_path / "b", {"batch": 2, "length": 7}, RUNTIME).path)
    at = regions.at(bound, tmp_path / "bound")
    (partition,) = plan.partitions
    made = at.of(partition)
    assert (made.inputs[0].shape, made.outputs[0].shape) == ((2, 7, 64), (2, 64))
    assert at.of(partition) is made and made.prepared
    feed = {"x": np.random.default_rng(2).standard_normal((2, 7, 64)).astype(np.float32)}
    results = [
        onnxruntime.InferenceSession(model.path).run(None, feed)[0]
        for model in (made, regions.of(partition))
    ]
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_what_cannot_be_rewritten_is_told(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 17]>
        g (float[N, 64] x) => (float[N, 64] y) { h = Relu(x) y = Sigmoid(h) }"""
    free = _free(tmp_path, onnx.parser.parse_model(text), ["N"])
    regions, plan = _regions(tmp_path, free), _whole(free, _STATIC)
    regions.rewrite([plan, _whole(free, "onnxruntime")])
    assert f"{_STATIC} cannot rewrite it" in (regions.refusal(plan) or "")
    assert regions.refusal(_whole(free, "onnxruntime")) is None

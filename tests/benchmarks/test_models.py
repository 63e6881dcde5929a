"""The benchmark models: the published sizes, sane numbers, the same bytes each time."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks.decoder import __main__ as decoder
from benchmarks.support import models
from benchmarks.support.zoo import convolutional, nasnet, transformers
from benchmarks.support.zoo.net import Net
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from tests.models import all_light

# Parameters as published (timm, torchvision, transformers), in millions, batch-norm statistics left out.
_SIZES: list[tuple[Callable[[], onnx.ModelProto], float]] = [
    (convolutional.mobilenet_v2, 3.50),
    (convolutional.dcgan, 3.58),
    (convolutional.resnext50, 25.03),
    (convolutional.resnet18_3d, 33.37),
    (nasnet.nasnet_mobile, 5.29),
    (transformers.vit_small, 22.05),
    pytest.param(transformers.bert_base, 109.48, marks=pytest.mark.slow),
    pytest.param(transformers.gpt2, 124.44, marks=pytest.mark.slow),
]  # type: ignore[list-item]


@pytest.mark.slow
@pytest.mark.parametrize(("build", "millions"), _SIZES)
def test_architectures_have_the_published_number_of_parameters(
    build: Callable[[], onnx.ModelProto], millions: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Net, "normal", lambda net, *shape, std=1.0: net.constant(np.zeros(shape, np.float32))
    )
    proto = build()
    statistics = {
        name for n in proto.graph.node if n.op_type == "BatchNormalization" for name in n.input[3:]
    }
    counted = sum(
        math.prod(tensor.dims)
        for tensor in proto.graph.initializer
        if tensor.name not in statistics and tensor.data_type == onnx.TensorProto.FLOAT
    )
    # GPT-2 and BERT keep masks and fewer positions here: 128 in place of 1,024 and 512.
    assert counted / 1e6 == pytest.approx(millions, rel=0.006)


def _outputs(name: str, cache: Path, folder: Path, seed: int) -> list[np.ndarray]:
    built = models.benchmark_model(name, cache)
    model = Model.open(normalize(built.path, folder, built.dims).path)
    session = onnxruntime.InferenceSession(str(model.path), providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, built.inputs(model, seed))]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["light_squeezenet", "mobilenet_v2", "dcgan", "magika", "ppocr_cls"])
def test_outputs_depend_on_the_input_and_are_not_saturated(name: str, tmp_path: Path) -> None:
    _check_outputs(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["light_resnet50", "light_densenet121", "nasnet_mobile", "vit_small"])
def test_outputs_of_larger_models_depend_on_the_input(name: str, tmp_path: Path) -> None:
    _check_outputs(name, tmp_path)


def _check_outputs(name: str, tmp_path: Path) -> None:
    first, second = (_outputs(name, tmp_path / "cache", tmp_path / "n", seed) for seed in (1, 50))
    assert any(not np.allclose(a, b, rtol=1e-3) for a, b in zip(first, second, strict=True))
    for value in first:
        assert np.isfinite(value).all() and np.abs(value).max() < 100
    if name in all_light():
        assert first[0].max() < 0.95 or "densenet" in name
        assert first[0].std() > 1e-4


@pytest.mark.slow
def test_detection_finds_the_text_of_its_inputs(tmp_path: Path) -> None:
    (found,) = _outputs("ppocr_det", tmp_path / "c", tmp_path / "n", 3)
    assert found.max() > 0.5


@pytest.mark.slow
def test_a_model_is_built_once_and_always_the_same(tmp_path: Path) -> None:
    first = models.benchmark_model("light_shufflenet", tmp_path / "a")
    stamp = first.path.stat().st_mtime_ns
    assert models.benchmark_model("light_shufflenet", tmp_path / "a").path.stat().st_mtime_ns == stamp
    again = models.benchmark_model("light_shufflenet", tmp_path / "b")
    assert first.path.read_bytes() == again.path.read_bytes()
    assert [p.name for p in (tmp_path / "a").iterdir()] == [first.path.name]


def test_an_unknown_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="light_nothing"):
        models.benchmark_model("light_nothing", tmp_path)


def test_users_own_file_is_a_model_with_free_dimensions(tmp_path: Path) -> None:
    file = tmp_path / "own.onnx"
    text = '<ir_version: 10, opset_import: ["" : 17]> g (float[n, length] x, int64[n] i) => (float[m, length] y)'
    text += (
        " <float[3, 4] table> { rows = Gather <axis = 0> (table, i) y = Concat <axis = 0> (rows, x) }"
    )
    text = text.replace("<float[3, 4] table>", f"<float[3, 4] table = {{{', '.join(['1'] * 12)}}}>")
    onnx.save(onnx.parser.parse_model(text), file)
    word = f"{file}:n=20,length=4"
    assert models.name_or_file(word) == word
    built = models.benchmark_model(word)
    assert (built.path, built.dims) == (file, {"n": 20, "length": 4})
    model = Model.open(normalize(built.path, tmp_path / "n", built.dims).path)
    inputs = built.inputs(model)
    assert inputs["x"].shape == (20, 4) and 0 <= inputs["i"].min() <= inputs["i"].max() < 3
    assert models.benchmark_model(str(file)).dims == {}


@pytest.mark.parametrize("word", ["light_nothing", "nothing.onnx", "nothing.onnx:n", ":n=1"])
def test_word_that_is_neither_name_nor_file_is_refused(word: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="neither a file"):
        models.name_or_file(word)


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "load_time",
        "deployment.cached_load",
        "deployment.package_latency",
        "concurrency.__main__",
        "throughput.__main__",
        "throughput.rows",
        "shapes.__main__",
    ],
)
def test_unknown_model_is_told_with_those_that_there_are(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [module, "nothing"])
    with pytest.raises(SystemExit):
        importlib.import_module(f"benchmarks.{module}").main()
    said = capsys.readouterr().err
    assert "nothing" in said and "ppocr_rec" in said


@pytest.mark.slow
def test_each_plan_generates_the_same_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "find_weights", lambda: None)
    words = ["--layers", "4", "--tokens", "2", "--rounds", "1", "--json", str(tmp_path / "rows.json")]
    monkeypatch.setattr(sys, "argv", ["decoder", *words])
    decoder.main()
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert len(rows) == 5 and all(row["same_tokens"] for row in rows)


def test_fewer_layers_than_partitions_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["decoder", "--layers", "2"])
    with pytest.raises(SystemExit):
        decoder.main()
    assert "--layers must be at least 4" in capsys.readouterr().err

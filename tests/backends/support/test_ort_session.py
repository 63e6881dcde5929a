"""Optimized graphs of ONNX Runtime that are kept in the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.backends.contract import CompileContext, SubModel
from collage.backends.registry import resolve
from collage.backends.support import ort_session
from collage.backends.support.ort_session import GRAPH, WEIGHTS
from collage.partitioner.target import Target
from tests.backends.quantization.test_float_nodes import CNN
from tests.backends.quantization.test_quantize import model_of

PLAIN = Target.parse("onnxruntime")


@pytest.fixture
def model(tmp_path: Path) -> SubModel:
    rng = np.random.default_rng(0)
    # Smaller weights would stay in the graph's file.
    weights = {f"w{i}": rng.standard_normal((24, 24, 3, 3)) / 24 for i in (1, 2, 3)}
    biases = {f"b{i}": rng.standard_normal(24) for i in (1, 2, 3)}
    return model_of(CNN.replace("1, 8, 12", "1, 24, 12"), weights | biases, tmp_path)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files of which sessions were made, in order."""
    seen: list[str] = []
    real = ort_session.open_model

    def noted(path: Path, target: Target, options: Any) -> Any:
        seen.append(path.name)
        return real(path, target, options)

    monkeypatch.setattr(ort_session, "open_model", noted)
    return seen


def values(model: SubModel, target: Target, folder: Path, cache_dir: Path | None) -> list[np.ndarray]:
    folder.mkdir()
    made = resolve(target).compile(model, target, CompileContext(1, folder, cache_dir))
    inputs = [
        np.random.default_rng(1).standard_normal(s.static_shape).astype(np.float32)
        for s in model.inputs
    ]
    outputs = [np.zeros(s.static_shape, np.float32) for s in model.outputs]
    made.bind(inputs, outputs)
    made.run()
    made.close()
    return outputs


def test_a_kept_graph_computes_the_same_and_is_not_made_again(
    model: SubModel, tmp_path: Path, opened: list[str]
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    expected = values(model, PLAIN, tmp_path / "plain", None)
    assert opened == [model.path.name]
    for work in ("first", "second"):
        opened.clear()
        for found, wanted in zip(values(model, PLAIN, tmp_path / work, cache), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
        assert opened == ([model.path.name, GRAPH] if work == "first" else [GRAPH])
    (weights,) = cache.glob(f"*/{WEIGHTS}")
    assert weights.stat().st_size >= 3 * 24 * 24 * 9 * 4


def test_levels_of_optimization_have_graphs_of_their_own(model: SubModel, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    values(model, PLAIN, tmp_path / "all", cache)
    values(model, Target.parse("onnxruntime -opt=extended"), tmp_path / "extended", cache)
    assert len(list(cache.glob(f"*/{GRAPH}"))) == 2


def test_a_graph_that_cannot_be_kept_is_opened_as_it_is(
    model: SubModel, tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr(ort_session, "save_optimized", lambda *_: 1 / 0)
    values(model, PLAIN, tmp_path / "work", cache)
    assert opened == [model.path.name]
    assert not list(cache.glob("onnxruntime*"))


def test_a_damaged_graph_is_made_again(model: SubModel, tmp_path: Path, opened: list[str]) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    expected = values(model, PLAIN, tmp_path / "first", cache)
    (weights,) = cache.glob(f"*/{WEIGHTS}")
    weights.write_bytes(bytes(weights.stat().st_size))
    opened.clear()
    for found, wanted in zip(values(model, PLAIN, tmp_path / "again", cache), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert opened == [model.path.name, GRAPH]

"""Ratios to the best peer, their table, and requests that a session of the benchmark joins."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks.concurrency.contenders import Batches
from benchmarks.concurrency.load import Row
from benchmarks.throughput.tables import compared, latest, tables

SETTINGS = {
    "hardware": "2 threads, a machine",
    "targets": ["a", "b"],
    "time_limit_s": 60.0,
    "seconds": 2.0,
    "rounds": 3,
}


def _load(name: str, kind: str, *rates: float) -> Row:
    return Row(name, kind, 4, float(np.median(rates)), 1.0, 1.0, 1.0, 1 << 20, rates)


def _row(model: str, ratio: float, low: float, high: float) -> dict[str, object]:
    found = {"clients": 4, "peer": "p", "ours_per_s": 10.0 * ratio, "peer_per_s": 10.0, "chosen": "c"}
    return {"model": model, **SETTINGS, **found, "ratio": ratio, "interval": [low, high]}


def test_ratio_is_that_of_rounds_to_the_best_peer() -> None:
    loads = [
        _load("ours", "ours", 110.0, 55.0, 220.0),
        _load("slow", "onnxruntime", 90.0, 90.0, 90.0),
        _load("fast", "openvino", 100.0, 50.0, 200.0),
    ]
    found = compared(loads, 4)
    assert (found["peer"], found["clients"]) == ("fast", 4)
    assert found["ratio"] == pytest.approx(1.1)  # rounds differ, and pairs do not
    assert found["interval"] == pytest.approx([1.1, 1.1])
    assert found["loads"][2]["rates_per_s"] == (100.0, 50.0, 200.0)


def test_table_has_the_mean_of_models_and_those_behind() -> None:
    failed = {"model": "a", **SETTINGS, "error": "broke"}
    rows = latest(
        [_row("a", 9.0, 9.0, 9.0), failed, _row("a", 1.21, 1.1, 1.3), _row("b", 1.0, 0.9, 1.1)]
    )
    assert [row["ratio"] for row in rows] == [1.21, 1.0]
    text = tables([*rows, _row("c", 0.9, 0.8, 0.95)], SETTINGS)
    assert "| a | c | 4 | 12.1 | p | 10.0 | 1.210 | 1.100 to 1.300 |" in text
    assert "Geometric mean over 3 models 1.029" in text and "least 0.900" in text
    assert text.endswith("beyond noise: c.\n")
    assert tables([], SETTINGS).endswith("|---|\n")


def test_joined_requests_get_their_own_rows(tmp_path: Path) -> None:
    text = "twice (float[4, 2] x) => (float[4, 2] y) { y = Add(x, x) }"
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 20]> {text}'), path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    batches = Batches(session, 4)

    def ask(i: int) -> list[float]:
        (made,) = batches.ask({"x": np.full((1, 2), i, np.float32)})
        return made.ravel().tolist()

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(30))) == [[2.0 * i, 2.0 * i] for i in range(30)]

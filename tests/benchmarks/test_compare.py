"""Result files of benchmarks: which rows they keep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from benchmarks import compare
from benchmarks.compare import in_order
from benchmarks.support.results import here, measured_before

SETTINGS = {"tolerance": 1e-3, "hardware": here()}


def test_rows_of_this_machine_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    assert not measured_before(file, SETTINGS)
    file.write_text(json.dumps({**SETTINGS, "rows": [{"model": "m"}]}), encoding="utf-8")
    assert measured_before(file, SETTINGS) == [{"model": "m"}]


def test_rows_of_another_machine_are_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    text = json.dumps({**SETTINGS, "hardware": "64 threads, another", "rows": [{"model": "m"}]})
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match=r"64 threads, another.*give another --output"):
        measured_before(file, SETTINGS)
    assert file.read_text(encoding="utf-8") == text


def test_rows_of_files_come_last() -> None:
    measured = {"own.onnx": 1, "silero": 2, "light_vgg19": 3}
    assert in_order(measured) == [3, 2, 1]


def test_a_model_that_cannot_be_tuned_is_a_row_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, output = tmp_path / "free.onnx", tmp_path / "results.json"
    text = '<ir_version: 10, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Relu (x) }'
    onnx.save(onnx.parser.parse_model(text), file)
    words = ["--models", str(file), "--targets", "onnxruntime", "--output", str(output)]
    monkeypatch.setattr("sys.argv", ["compare", *words])
    compare.main()
    (row,) = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert row["model"] == str(file) and "free input dimensions: x:0 (n)" in row["error"]


def test_measured_rows_stay_and_failed_ones_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "results.json"
    kept = {
        **{
            "model": "silero",
            "speedup": 1.5,
            "interval": [1.4, 1.6],
            "seconds_cold": 1.0,
            "measured": 1,
        },
        **{"unique": 2, "seconds_known": None, "max_relative_error": 0.0, "partitions": []},
    }
    settings = {"targets": ["onnxruntime"], **SETTINGS}
    failed = {"model": "magika", "error": "the disk was full"}
    output.write_text(json.dumps({**settings, "rows": [kept, failed]}), encoding="utf-8")
    tried = []

    def measured(name: str, *_: object) -> Iterator[dict[str, object]]:
        for number in (1, 2):
            tried.append((name, number))
            yield {**kept, "model": name, "speedup": float(number)}

    monkeypatch.setattr(compare, "_measured", measured)
    words = ["--models", "magika", "silero", "dcgan", "--targets", "onnxruntime"]
    monkeypatch.setattr("sys.argv", ["compare", *words, "--output", str(output)])
    compare.main()
    # A model is timed once more after the next one.
    assert tried == [("magika", 1), ("dcgan", 1), ("magika", 2), ("dcgan", 2)]
    rows = {row["model"]: row for row in json.loads(output.read_text(encoding="utf-8"))["rows"]}
    assert rows["silero"] == kept
    assert rows["magika"]["speedup"] == rows["dcgan"]["speedup"] == 2

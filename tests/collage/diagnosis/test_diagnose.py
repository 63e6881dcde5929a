"""Planted faults in a model of 500 nodes are found, explained and made reproducible."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from collage.diagnosis import trials
from collage.diagnosis.diagnose import diagnose
from collage.diagnosis.output import REPORT
from collage.diagnosis.request import DiagnoseRequest
from collage.options import TuneOptions
from collage.partitioner.target import Target
from tests.collage.diagnosis.conftest import long_model

pytestmark = pytest.mark.slow
MOST_TRIALS = 40


def found(path: Path, target: str, **more: Any) -> dict[str, Any]:
    request = DiagnoseRequest(
        source=path,
        target=Target.parse(target),
        output=path.parent / "found",
        options=TuneOptions(threads=1),
        most_trials=MOST_TRIALS,
        **more,
    )
    return diagnose(request)


def nodes_of(report: dict[str, Any]) -> list[list[str]]:
    return [culprit["nodes"] for culprit in report["faults"]["culprits"]]


@pytest.mark.usefixtures("planted_backend")
def test_an_error_at_one_node_is_found_with_its_values(model_path: Path) -> None:
    report = found(model_path, "planted -fault=wrong -at=n302")
    (culprit,) = report["faults"]["culprits"]
    assert culprit["nodes"] == ["n302"] and culprit["outcome"] == "wrong"
    assert report["faults"]["trials"] <= MOST_TRIALS
    values = culprit["values"]
    assert values["wrong_elements"] == values["size"] == 32
    worst = values["elements"][0]
    assert float(worst["got"]) == pytest.approx(1.5 * float(worst["expected"]) + 0.25, rel=1e-4)
    assert json.loads((model_path.parent / "found" / REPORT).read_text(encoding="utf-8")) == report


@pytest.mark.usefixtures("planted_backend")
def test_the_error_by_depth_begins_at_the_culprit(model_path: Path) -> None:
    report = found(model_path, "planted -fault=wrong -at=n302")
    depth = report["faults"]["error_by_depth"]
    before = [v["error"] for v in depth["values"] if v["position"] < 302]
    after = [v["error"] for v in depth["values"] if v["position"] >= 302 and v["op"] == "Add"]
    assert max(before) < 1e-5 and min(after) > 1e-3 and len(depth["values"]) > 40
    picture = Path(depth["picture"]).read_text(encoding="utf-8")
    assert picture.startswith("<svg") and ">n302<" in picture


@pytest.mark.usefixtures("planted_backend")
def test_errors_at_two_nodes_are_both_found(model_path: Path) -> None:
    report = found(model_path, "planted -fault=wrong -at=n101,n404")
    assert nodes_of(report) == [["n101"], ["n404"]]
    assert report["faults"]["trials"] <= MOST_TRIALS


@pytest.mark.usefixtures("planted_backend")
def test_an_error_beyond_a_size_is_found_at_that_size(model_path: Path) -> None:
    report = found(model_path, "planted -fault=large -beyond=60")
    first = report["faults"]["culprits"][0]
    assert len(first["nodes"]) == 61 and first["is_smallest"]
    assert report["faults"]["trials"] <= MOST_TRIALS


@pytest.mark.usefixtures("planted_backend")
def test_an_error_in_the_second_run_alone_is_found(model_path: Path) -> None:
    report = found(model_path, "planted -fault=second -at=n17")
    (culprit,) = report["faults"]["culprits"]
    assert culprit["nodes"] == ["n17"] and culprit["values"]["run"] == 1
    assert report["faults"]["trials"] <= MOST_TRIALS


@pytest.mark.usefixtures("planted_backend")
def test_a_crash_is_found(model_path: Path) -> None:
    report = found(model_path, "planted -fault=crash -at=n250")
    (culprit,) = report["faults"]["culprits"]
    assert culprit["nodes"] == ["n250"] and culprit["outcome"] == "crash"
    assert "SIGABRT" in culprit["reason"] and culprit["reproducer"]["reproduced"]
    assert report["faults"]["trials"] <= MOST_TRIALS


@pytest.mark.usefixtures("planted_backend")
def test_a_hang_is_found(model_path: Path) -> None:
    report = found(model_path, "planted -fault=hang -at=n499", timeout_s=6.0)
    (culprit,) = report["faults"]["culprits"]
    assert culprit["nodes"] == ["n499"] and culprit["outcome"] == "hang"
    assert report["faults"]["trials"] <= MOST_TRIALS


@pytest.mark.usefixtures("planted_backend")
def test_a_region_that_takes_long_does_not_hang(tmp_path: Path) -> None:
    onnx.save(long_model(20), tmp_path / "m.onnx")
    report = found(tmp_path / "m.onnx", "planted -fault=wrong -at=n3 -heavy=n15 -heavy_s=6")
    (culprit,) = report["faults"]["culprits"]
    assert culprit["nodes"] == ["n3"] and culprit["outcome"] == "wrong"


@pytest.mark.usefixtures("planted_backend")
def test_a_region_that_takes_long_is_told_from_one_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The light half comes back at once, so the heavy node has too little time until it is asked again."""
    monkeypatch.setattr(trials, "_PATIENCE", 1.0)
    monkeypatch.setattr(trials, "_LEAST_TIMEOUT_S", 3.0)
    onnx.save(long_model(8), tmp_path / "m.onnx")
    target = "planted -fault=hang -at=n7 -heavy=n5 -heavy_s=5"
    report = found(tmp_path / "m.onnx", target, timeout_s=9.0)
    (culprit,) = report["faults"]["culprits"]
    assert culprit["nodes"] == ["n7"] and culprit["outcome"] == "hang"


@pytest.mark.usefixtures("planted_backend")
def test_nothing_stays_of_an_earlier_diagnosis_in_the_folder(tmp_path: Path) -> None:
    onnx.save(long_model(10), tmp_path / "m.onnx")
    found(tmp_path / "m.onnx", "planted -fault=wrong -at=n3")
    folder = tmp_path / "found"
    assert (folder / "culprit-0").is_dir() and (folder / "error-by-depth.svg").is_file()
    (folder / "mine.txt").touch()
    report = found(tmp_path / "m.onnx", "planted -refuses=Neg")
    assert report["faults"]["culprits"] == []
    assert {entry.name for entry in folder.iterdir()} == {"report.json", "mine.txt"}


@pytest.mark.usefixtures("planted_backend")
def test_the_reproducer_is_small_and_shows_the_fault(model_path: Path) -> None:
    """The script runs in a process of its own; the weights are cut where the fault stays."""
    report = found(model_path, "planted -fault=wrong -at=n300")
    (culprit,) = report["faults"]["culprits"]
    folder = Path(culprit["reproducer"]["folder"])
    assert culprit["reproducer"]["reproduced"] and culprit["reproducer"]["imports_collage"]
    assert {f.name for f in folder.iterdir()} == {
        *("model.onnx", "inputs-0.npz", "expected-0.npz"),
        *("reproduce.py", "environment.json", "issue.md"),
    }
    (weight,) = onnx.load(folder / "model.onnx").graph.initializer
    assert list(weight.dims) == [2, 2]
    environment = {"PYTHONPATH": f"{model_path.parent / 'site'}:{Path.cwd()}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, folder / "reproduce.py"],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    assert len((folder / "reproduce.py").read_text(encoding="utf-8").splitlines()) <= 40
    text = (folder / "issue.md").read_text(encoding="utf-8")
    assert "MatMul" in text and "| element | expected | got |" in text


@pytest.mark.usefixtures("planted_backend")
def test_what_the_guard_refuses_is_left_out_and_told(tmp_path: Path) -> None:
    onnx.save(long_model(20), tmp_path / "m.onnx")
    report = found(tmp_path / "m.onnx", "planted -fault=wrong -at=n3,n2 -refuses=Neg")
    assert nodes_of(report) == [["n2"]]
    (refused,) = report["refused"]
    assert (refused["op"], refused["nodes"]) == ("Neg", 4)


@pytest.mark.usefixtures("planted_backend")
def test_nodes_that_the_guard_refuses_are_tried_where_asked(model_path: Path) -> None:
    report = found(model_path, "planted -fault=wrong -at=n3 -refuses=Neg", all_nodes=True)
    assert nodes_of(report) == [["n3"]]


def test_a_right_target_has_no_faults(tmp_path: Path) -> None:
    onnx.save(long_model(20), tmp_path / "m.onnx")
    report = found(tmp_path / "m.onnx", "onnxruntime")
    assert report["faults"]["culprits"] == [] and report["faults"]["trials"] == 1
    assert np.isfinite(report["faults"]["regions"][0]["error"])

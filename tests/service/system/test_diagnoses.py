"""Diagnoses through the server: planted faults are found, told as typed JSON, and sent as a zip."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from collage.cli.app import app
from collage.cli.checking.diagnose import FOUND
from collage.service.diagnosis_models import DiagnosisView
from tests.backends import planted
from tests.collage.diagnosis.conftest import long_model
from tests.service.conftest import RunningServer, StartServer, post_job
from tests.service.routes.test_openapi import _check
from tests.service.system.test_tuning import _until


@pytest.fixture
def model() -> bytes:
    return bytes(long_model(60).SerializeToString())


@pytest.fixture
def planted_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The backend with planted faults, for the server and the processes that it starts."""
    site = planted.install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    return site


def _post(server: RunningServer, model: bytes, target: str, **options: Any) -> dict[str, Any]:
    answer = server.http.post(
        "/v1/diagnoses",
        files={"model": ("long.onnx", model)},
        data={"target": target, "options": json.dumps({"threads": 1, **options})},
    )
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    assert made["kind"] == "diagnose" and answer.headers["Location"] == made["links"]["self"]
    return made


def _done(server: RunningServer, job: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The job after its end, and its report."""
    ended = _until(server, job["links"]["self"], "done", "failed", within_s=300)
    assert ended["state"] == "done", ended["reason"]
    report = server.http.get(ended["links"]["report"]).json()  # type: ignore[index]
    _check(DiagnosisView, report)
    return ended, report  # type: ignore[return-value]


@pytest.mark.slow
@pytest.mark.usefixtures("planted_site")
def test_faults_are_found_and_sent(start_server: StartServer, model: bytes, tmp_path: Path) -> None:
    server = start_server(runners=1)
    job = _post(server, model, "planted -fault=wrong -at=n11,n42")
    crash = _post(server, model, "planted -fault=crash -at=n25")
    hang = _post(server, model, "planted -fault=hang -at=n5", timeout_s=6)
    ended, report = _done(server, job)
    assert [culprit["nodes"] for culprit in report["faults"]["culprits"]] == [["n11"], ["n42"]]
    assert ended["summary"] | {"faults": 2, "largest_error": None} == {
        "faults": 2,
        "is_right": False,
        "slow_regions": 0,
        "largest_error": None,
        "ratio": None,
        "ratio_interval": None,
    }
    assert report["faults"]["culprits"][0]["values"]["elements"]
    marks = [mark["node"] for mark in report["faults"]["error_by_depth"]["marks"]]
    assert marks == ["n11", "n42"]
    picture = server.http.get(ended["links"]["picture"])
    assert picture.headers["Content-Type"].startswith("image/svg+xml") and ">n42<" in picture.text
    bundle = server.http.get(ended["links"]["artifact"])
    assert bundle.headers["Content-Type"] == "application/zip"
    assert "long.diagnosis.zip" in bundle.headers["Content-Disposition"]
    with zipfile.ZipFile(io.BytesIO(bundle.content)) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "unpacked")
    for culprit in report["faults"]["culprits"]:
        folder = culprit["reproducer"]["folder"]
        assert culprit["reproducer"]["reproduced"] and not Path(folder).is_absolute()
        assert {f"{folder}/model.onnx", f"{folder}/reproduce.py", f"{folder}/issue.md"} <= names
    assert {"report.json", "error-by-depth.svg"} <= names
    # Nothing in what is sent names a place on the server.
    for text in (
        json.dumps(report),
        (tmp_path / "unpacked" / "report.json").read_text(encoding="utf-8"),
    ):
        assert str(server.settings.data_dir) not in text
    run = subprocess.run(
        [sys.executable, tmp_path / "unpacked" / "culprit-0" / "reproduce.py"],
        env={"PYTHONPATH": f"{tmp_path / 'site'}:{Path.cwd()}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert run.returncode == 1, run.stderr
    for other, outcome, node in ((crash, "crash", "n25"), (hang, "hang", "n5")):
        _, told = _done(server, other)
        (culprit,) = told["faults"]["culprits"]
        assert (culprit["outcome"], culprit["nodes"]) == (outcome, [node])
    page = server.http.get(ended["links"]["page"]).text  # type: ignore[index]
    assert "computes wrong values at 2 places" in page and "culprit-1/reproduce.py" in page
    listed = server.http.get("/v1/jobs", params={"kind": "diagnose"}).json()["items"]
    assert [each["id"] for each in listed] == [hang["id"], crash["id"], job["id"]]
    assert server.http.get(f"{ended['links']['self']}/graph").status_code == 404  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.usefixtures("planted_site")
def test_a_slow_region_is_told_with_both_times(start_server: StartServer, model: bytes) -> None:
    server = start_server(runners=1)
    target = "planted -slow=n31 -slow_us=3000"
    ended, report = _done(server, _post(server, model, target, against="planted"))
    region = report["speed"]["regions"][0]
    assert "n31" in region["nodes"]
    for part in (report["speed"]["whole"], region["alone"], region["in_place"]):
        assert part["ratio_interval"][0] > 1 and part["latency_us"] > part["other_latency_us"]
    summary = ended["summary"]
    assert summary["faults"] == 0 and summary["slow_regions"] >= 1 and summary["ratio"] > 1
    page = server.http.get(ended["links"]["page"]).text
    assert "is slow in" in page and "time_it.py" in page


@pytest.mark.slow
def test_the_command_line_diagnoses_on_a_server(
    start_server: StartServer, planted_site: Path, model: bytes, tmp_path: Path
) -> None:
    server = start_server(runners=1)
    (tmp_path / "m.onnx").write_bytes(model)
    np.savez(tmp_path / "i.npz", x=np.ones((1, 32), np.float32))
    done = CliRunner().invoke(
        app,
        [
            *("diagnose", str(tmp_path / "m.onnx"), "-t", "planted -fault=wrong -at=n7"),
            *("--inputs", str(tmp_path / "i.npz"), "--server", server.url, "--threads", "1"),
            *("-o", str(tmp_path / "found")),
        ],
    )
    assert done.exit_code == FOUND, done.output
    assert "wrong: Mul (n7)" in done.stdout
    assert (tmp_path / "found" / "culprit-0" / "reproduce.py").exists()
    assert not list((tmp_path / "found").glob("*.zip"))


@pytest.mark.slow
def test_a_diagnosis_of_a_job_takes_its_files_and_options(server: RunningServer) -> None:
    files = {"model": ("m.onnx", b"bytes"), "inputs": ("i.npz", b"npz")}
    options = {"tolerance": 0.01, "seed": 7, "time_limit_s": 5, "dims": {"n": 3}}
    data = {"targets": "onnxruntime,openvino", "options": json.dumps(options), "labels": "a"}
    job = server.http.post("/v1/jobs", files=files, data=data).json()
    asked = {"job": job["id"], "target": "openvino", "options": {"trials": 9}}
    made = server.http.post("/v1/diagnoses", json=asked)
    assert made.status_code == 201, made.text
    found = made.json()
    assert (found["kind"], found["targets"], found["labels"]) == ("diagnose", ["openvino"], ["a"])
    assert found["options"] == {"tolerance": 0.01, "seed": 7, "dims": {"n": 3}, "trials": 9}
    stored = server.services.jobs.get(found["id"])
    first = server.services.jobs.get(job["id"])
    assert stored is not None and first is not None
    assert stored.inputs_sha256 == first.inputs_sha256 and stored.model_sha256 == first.model_sha256
    again = server.http.post(f"/v1/jobs/{found['id']}/rerun", json={"options": {"trials": None}}).json()
    assert again["kind"] == "diagnose" and "trials" not in again["options"]
    assert again["rerun_of"] == found["id"]
    model = {"model_sha256": job["model_sha256"], "target": "openvino"}
    assert server.http.post("/v1/diagnoses", json=model).json()["options"] == {}
    kinds = {
        kind: len(server.http.get("/v1/jobs", params={"kind": kind}).json()["items"])
        for kind in ("tune", "diagnose", "watch")
    }
    assert kinds == {"tune": 1, "diagnose": 3, "watch": 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"target": "openvino"}, "either job or model_sha256"),
        ({"job": "JOB", "model_sha256": "0" * 64, "target": "openvino"}, "either job or model_sha256"),
        ({"job": "JOB"}, "target"),
        ({"job": "JOB", "target": "foo"}, "unknown backend"),
        ({"job": "JOB", "target": "openvino", "options": {"trials": 0}}, "options.trials"),
        ({"job": "JOB", "target": "openvino", "options": {"pins": []}}, "options.pins"),
        (
            {"job": "JOB", "target": "openvino", "options": {"against_environment": "next"}},
            "no environment of this server",
        ),
        ({"job": "JOB", "target": "openvino", "options": {"against": "onnx"}}, "unknown backend"),
    ],
)
def test_what_cannot_be_diagnosed_is_refused_at_once(
    server: RunningServer, body: dict[str, Any], said: str
) -> None:
    job = post_job(server).json()["id"]
    sent = {name: job if value == "JOB" else value for name, value in body.items()}
    answer = server.http.post("/v1/diagnoses", json=sent)
    assert answer.status_code == 422 and said in answer.text
    assert len(server.http.get("/v1/jobs").json()["items"]) == 1


@pytest.mark.slow
def test_workers_have_no_environments_to_compare_with(server: RunningServer) -> None:
    job = post_job(server).json()["id"]
    object.__setattr__(server.services.settings, "scheduler", "tls://nowhere:1")
    body = {"job": job, "target": "openvino", "options": {"against_environment": "next"}}
    answer = server.http.post("/v1/diagnoses", json=body)
    assert answer.status_code == 422 and "measure on other machines" in answer.text

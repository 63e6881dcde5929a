"""A server whose jobs are measured by workers elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.support.zero_model import TARGETS, zero_model
from tests.backends import planted
from tests.collage.diagnosis.conftest import long_model
from tests.hosts import Cluster
from tests.service.conftest import RunningServer, StartServer, post_job

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One machine, labeled `edge`, without OpenVINO; `lab` may join."""
    folder = tmp_path_factory.mktemp("cluster")
    made = Cluster(folder, ["edge", "lab"])
    try:
        site = planted.install(folder / "site")
        made.work(made.host("edge", "edge", without=["openvino"], more=[site]), "edge")
        made.until(lambda workers: len(workers) == 1)
        yield made
    finally:
        made.close()


@pytest.fixture
def planted_here(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server knows the backend with planted faults too."""
    site = str(cluster.folder / "site")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", site)


@pytest.fixture
def server(cluster: Cluster, start_server: StartServer) -> RunningServer:
    return start_server(scheduler=cluster.address, scheduler_certificates=cluster.tuner, runners=1)


def _ended(server: RunningServer, job: str) -> dict[str, object]:
    deadline = time.monotonic() + 120
    while True:
        found: dict[str, object] = server.http.get(f"/v1/jobs/{job}").raise_for_status().json()
        if found["state"] in ("done", "failed", "cancelled"):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def _waiting(server: RunningServer, job: str) -> dict[str, Any]:
    """The job once it waits for a worker."""
    deadline = time.monotonic() + 60
    while True:
        found: dict[str, Any] = server.http.get(f"/v1/jobs/{job}").raise_for_status().json()
        if (
            found["state"] == "queued"
            and found["progress"] is not None
            and found["progress"]["stage"] == "waiting"
        ):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def _post(server: RunningServer, targets: list[str], **options: object) -> str:
    data = {"targets": json.dumps(targets), "options": json.dumps({"strategy": "greedy", **options})}
    return str(post_job(server, zero_model(), data=data).raise_for_status().json()["id"])


def test_jobs_are_measured_by_workers_and_the_pages_say_by_whom(server: RunningServer) -> None:
    job = _post(server, list(TARGETS))
    ended = _ended(server, job)
    assert ended["state"] == "done", ended["reason"]
    assert server.http.get(f"/v1/jobs/{job}/report").json()["machine"]["label"] == "edge"
    worker, runner = server.http.get("/v1/workers").raise_for_status().json()
    assert (worker["name"], worker["role"], worker["label"]) == ("edge", "measures", "edge")
    assert "onnxruntime" in worker["backends"] and "openvino" not in worker["backends"]
    assert (runner["role"], runner["backends"]) == ("runs jobs", [])
    assert "edge" in server.http.get("/workers").text
    targets = {entry["name"]: entry for entry in server.http.get("/v1/targets").json()}
    assert targets["onnxruntime"]["available"]
    assert not targets["openvino"]["available"]
    assert "no worker has it (edge: openvino cannot be imported" in targets["openvino"]["reason"]


@pytest.mark.usefixtures("planted_here")
def test_a_diagnosis_runs_on_a_worker(server: RunningServer) -> None:
    answer = server.http.post(
        "/v1/diagnoses",
        files={"model": ("long.onnx", long_model(30).SerializeToString())},
        data={"target": "planted -fault=wrong -at=n11", "options": '{"threads": 1}'},
    )
    job = _ended(server, answer.raise_for_status().json()["id"])
    assert job["state"] == "done", job["reason"]
    report = server.http.get(f"/v1/jobs/{job['id']}/report").json()
    (culprit,) = report["faults"]["culprits"]
    assert culprit["nodes"] == ["n11"] and culprit["reproducer"]["reproduced"]
    assert "edge" in report["hardware"]


@pytest.mark.usefixtures("planted_here")
def test_a_slow_region_is_found_on_a_worker(server: RunningServer) -> None:
    answer = server.http.post(
        "/v1/diagnoses",
        files={"model": ("long.onnx", long_model(30).SerializeToString())},
        data={
            "target": "planted -slow=n11 -slow_us=3000",
            "options": '{"threads": 1, "against": "planted"}',
        },
    )
    job = _ended(server, answer.raise_for_status().json()["id"])
    assert job["state"] == "done", job["reason"]
    speed = server.http.get(f"/v1/jobs/{job['id']}/report").json()["speed"]
    assert "n11" in speed["regions"][0]["nodes"] and speed["regions"][0]["reproducer"]["ran"]
    assert [side["version"] for side in speed["sides"]] == ["1.0", "1.0"]


def test_an_artifact_is_watched_on_a_worker(server: RunningServer) -> None:
    job = _post(server, ["onnxruntime"])
    watch = server.http.post("/v1/watches", json={"job": job}).raise_for_status().json()
    ended = _ended(server, job)
    assert ended["state"] == "done", ended["reason"]
    deadline = time.monotonic() + 120
    while True:
        history = server.http.get(f"/v1/watches/{watch['id']}/history").json()["runs"]
        if history:
            break
        shown = server.http.get(f"/v1/watches/{watch['id']}").json()
        assert time.monotonic() < deadline and not shown["problem"], shown
        time.sleep(0.1)
    (run,) = history
    assert run["verdict"] == "same" and run["environment"] == "this one"
    last = server.services.watches.last_measured(watch["id"])
    (worker,) = [w for w in server.services.remote_workers.workers() if w.name == "edge"]
    assert last is not None and last["key"]["hardware"] == worker.announced.hardware.digest
    watching = server.services.runner.watching
    (known,) = server.services.watches.measurable()
    keys = watching._worker_keys()
    assert watching._changes(known, last, keys) == []
    newer = [{**key, "onnxruntime": "99"} for key in keys]
    assert watching._changes(known, last, newer) == ["onnxruntime"]
    assert watching._changes(known, last, []) == []  # nobody could measure it


def test_a_job_says_at_once_that_nobody_has_its_target(server: RunningServer) -> None:
    ended = _ended(server, _post(server, ["openvino"]))
    assert ended["state"] == "failed"
    assert "no worker has openvino (edge: it lacks openvino" in str(ended["reason"])


def test_a_job_waits_when_asked_and_can_be_cancelled(server: RunningServer) -> None:
    job = _post(server, ["onnxruntime -host=lab"], wait_for_worker_s=100)
    said = _waiting(server, job)["progress"]["message"]
    assert "its label is 'edge', not 'lab'" in said and "it waits 100 s at most" in said
    server.http.post(f"/v1/jobs/{job}/cancel").raise_for_status()
    assert _ended(server, job)["state"] == "cancelled"


def test_a_job_that_waits_holds_no_runner(cluster: Cluster, server: RunningServer) -> None:
    """The server has one runner."""
    late = _post(server, ["onnxruntime -host=lab"], wait_for_worker_s=2)
    waiting = _post(server, ["onnxruntime -host=lab"], wait_for_worker_s=300)
    shown = _waiting(server, waiting)
    assert shown["position"] is None and shown["attempt"] == 0 and shown["started_at"] is None
    assert _ended(server, _post(server, ["onnxruntime"]))["state"] == "done"
    assert "no worker has onnxruntime on -host=lab" in str(_ended(server, late)["reason"])
    assert _waiting(server, waiting)["state"] == "queued"
    cluster.work(cluster.host("lab", "lab", without=["openvino"]), "lab")
    cluster.until(lambda workers: len(workers) == 2, within_s=120)
    assert _ended(server, waiting)["state"] == "done"


def test_a_scheduler_that_is_away_is_said(cluster: Cluster, start_server: StartServer) -> None:
    server = start_server(scheduler="tls://127.0.0.1:1", scheduler_certificates=cluster.tuner)
    answer = server.http.get("/v1/workers")
    assert answer.status_code == 503 and answer.json()["type"].endswith("scheduler-unreachable")
    page = server.http.get("/workers")
    assert page.status_code == 200 and "cannot be reached" in page.text
    assert not any(entry["available"] for entry in server.http.get("/v1/targets").json())

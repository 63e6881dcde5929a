"""Watched artifacts on a server: when they are due, what is kept, and what a person sees."""

from __future__ import annotations

import json
import re
import time
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import pytest

from collage.cost_db.jobs.job import Job
from collage.cost_db.tokens import Quotas
from collage.partitioner.errors import BadInputError
from collage.service.diagnosis_models import WatchReportView
from collage.service.jobs.watching import Watching
from collage.service.settings import Settings, read_settings
from tests.backends import planted
from tests.collage.diagnosis.conftest import long_model
from tests.collage.environments.wrappers import interpreter
from tests.service.conftest import RunningServer, StartServer, post_job
from tests.service.pages.made_jobs import done_job
from tests.service.routes.test_openapi import _check
from tests.service.system.test_tuning import _until

KEY = {"onnxruntime": "1", "collage": "0", "python": "3", "hardware": "h"}


def _watching(server: RunningServer, **settings: Any) -> Watching:
    """What a server that runs jobs does in the background, without running them."""
    services = server.services
    given = {**server.settings.model_dump(), "runners": 1, **settings}
    return Watching(
        Settings(**given),
        services.jobs,
        services.watches,
        services.files,
        services.catalog,
        services.remote_workers,
    )


def _jobs(server: RunningServer) -> list[Job]:
    found = server.services.jobs.list(state="queued").items
    return [job for job in found if job.kind == "watch"]


def _report(verdict: str = "same", ratio: float | None = None, **more: Any) -> dict[str, Any]:
    result = {
        "name": "artifact",
        "environment": "this one",
        "verdict": verdict,
        "reason": "nothing changed beyond noise",
        "ratio": ratio,
        "interval": None if ratio is None else [ratio - 0.01, ratio + 0.01],
        "blocks": [],
        **more,
    }
    at = "2026-11-28T12:00:00+00:00"
    measured = {
        "at": at,
        "key": KEY,
        "latency_us": [100.0, 110.0],
        "over_yardstick": [1.0, 1.1],
        "error": 0.0,
    }
    return {"results": [result], "measured": [measured]}


def _end(server: RunningServer, watching: Watching, report: dict[str, Any]) -> Job:
    """The oldest waiting job of a watch, ended as its runner ends it."""
    job = server.services.jobs.next_queued("tester", 60.0)
    assert job is not None and job.kind == "watch"
    watching.keep(job, report)
    server.services.jobs.finish(job.id, "done")
    return job


@pytest.mark.slow
def test_a_watch_says_why_it_has_no_artifact(server: RunningServer) -> None:
    watching = _watching(server)
    jobs = [post_job(server).json()["id"] for _ in range(3)]
    watches = [server.http.post("/v1/watches", json={"job": job}).json() for job in jobs]
    assert watching.look() == 0
    assert server.http.post(f"{watches[0]['links']['self']}/run").status_code == 422
    server.services.jobs.request_cancel(jobs[0])
    server.services.jobs.finish(jobs[1], "failed", reason="no plan")
    server.services.jobs.request_cancel(jobs[2])
    server.http.delete(f"/v1/jobs/{jobs[2]}")
    assert watching.look() == 0
    found = [server.http.get(watch["links"]["self"]).json() for watch in watches]
    assert [each["problem"] for each in found] == [
        "its tuning was cancelled",
        "its tuning failed: no plan",
        "its tuning was removed before it was done",
    ]
    assert "its tuning failed: no plan" in server.http.get("/watches").text


@pytest.mark.slow
def test_a_watch_is_measured_compared_and_kept(server: RunningServer) -> None:
    watching = _watching(server)
    job = done_job(server)
    made = server.http.post("/v1/watches", json={"job": job, "name": "net"}).json()
    assert watching.look() == 1 and watching.look() == 0
    (queued,) = _jobs(server)
    assert queued.name == "net" and watching.history(queued) == []
    first = _end(server, watching, _report())
    watch = server.http.get(made["links"]["self"]).json()
    assert watch["targets"] == ["onnxruntime", "openvino", "mnn"] and watch["due_at"] is None
    assert watch["last"]["verdict"] == "same" and watch["last"]["job"] == first.id
    again = server.http.post(f"{made['links']['self']}/run").json()
    assert again["kind"] == "watch" and again["options"] == {}
    (next_job,) = _jobs(server)
    assert [record["key"] for record in watching.history(next_job)] == [KEY]
    _end(server, watching, _report("slower", 1.3))
    runs = server.http.get(made["links"]["history"]).json()["runs"]
    assert [(run["verdict"], run["ratio"]) for run in runs] == [("same", None), ("slower", 1.3)]
    assert runs[0]["latency_us"] == [100.0, 110.0] and runs[0]["versions"] == KEY
    page = server.http.get("/watches").text
    assert "net" in page and "slower" in page and "1.300" in page
    assert server.http.post(f"/v1/jobs/{again['id']}/rerun", json={}).status_code == 422
    assert server.http.delete(made["links"]["self"]).status_code == 204
    assert server.http.get(made["links"]["history"]).status_code == 404
    assert "Nothing is watched yet" in server.http.get("/watches").text


@pytest.mark.slow
def test_a_job_gets_what_it_compares_with_and_the_last(server: RunningServer) -> None:
    watching = _watching(server)
    made = server.http.post("/v1/watches", json={"job": done_job(server)}).json()
    watching.look()
    _end(server, watching, _measured("same"))
    for _ in range(2):
        server.http.post(f"{made['links']['self']}/run")
        _end(server, watching, _measured("slower"))
    server.http.post(f"{made['links']['self']}/run")
    (queued,) = _jobs(server)
    assert [record["verdict"] for record in watching.history(queued)] == ["same", "slower"]


def _measured(verdict: str) -> dict[str, Any]:
    report = _report(verdict)
    report["measured"][0]["verdict"] = verdict
    return report


@pytest.mark.slow
def test_the_artifact_outlives_the_tuning_that_made_it(server: RunningServer) -> None:
    watching = _watching(server)
    job = done_job(server)
    made = server.http.post("/v1/watches", json={"job": job}).json()
    watching.look()
    (queued,) = _jobs(server)
    assert server.http.delete(f"/v1/jobs/{job}").status_code == 204
    server.services.jobs.request_cancel(queued.id)
    assert server.http.delete(f"/v1/jobs/{queued.id}").status_code == 204
    sha256 = server.http.get(made["links"]["self"]).json()["artifact_sha256"]
    assert server.services.files.has(sha256)
    assert server.http.post(f"{made['links']['self']}/run").status_code == 201


@pytest.mark.slow
def test_a_schedule_makes_it_due_again_and_again(server: RunningServer) -> None:
    every = _watching(server, watch_every_s=3600)
    done = server.http.post("/v1/watches", json={"job": done_job(server)}).json()
    assert every.look() == 1
    _end(server, every, _report())
    assert server.http.get(done["links"]["self"]).json()["due_at"] is not None
    assert every.look() == 0
    server.services.watches.make_due(done["id"])
    assert every.look() == 1
    # A server without a schedule takes the time back.
    _end(server, every, _report())
    _watching(server).look()
    assert server.http.get(done["links"]["self"]).json()["due_at"] is None


@pytest.mark.slow
def test_a_start_measures_what_has_changed(server: RunningServer, tmp_path: Path) -> None:
    watching = _watching(server)
    made = server.http.post("/v1/watches", json={"job": done_job(server)}).json()
    watching.look()
    catalog = server.services.catalog.get()
    versions = {entry["name"]: entry["version"] for entry in catalog["targets"]}
    changed = watching._changes(
        server.services.watches.measurable()[0], {"key": {}}, [watching._own_key()]
    )
    assert changed == ["collage", "hardware", "mnn", "onnxruntime", "openvino", "python"]
    report = _report()
    key = {name: versions[name] or "not installed" for name in ("mnn", "onnxruntime", "openvino")}
    key |= {"collage": version("collage-tuner"), "python": python_version()}
    report["measured"][0]["key"] = key | {"hardware": catalog["hardware"]["digest"]}
    _end(server, watching, report)
    assert _watching(server).look() == 0  # the next start finds all as it was
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n", encoding="utf-8")
    python.chmod(0o755)
    assert _watching(server, environments={"next": str(python)}).look() == 1
    _end(server, watching, report)
    report["measured"][0]["key"] = {**key, "openvino": "2020.1"}
    server.http.post(f"{made['links']['self']}/run")
    _end(server, watching, report)
    assert _watching(server).look() == 1


@pytest.mark.slow
def test_a_quota_puts_a_measurement_off(start_server: StartServer) -> None:
    server = start_server(authentication="on")
    token, secret = server.services.tokens.create("team", ["tune"], quotas=Quotas(active_jobs=1))
    server.http.headers["Authorization"] = f"Bearer {secret}"
    made = server.http.post("/v1/watches", json={"job": done_job(server)}).json()
    post_job(server)
    watching = _watching(server)
    assert watching.look() == 0
    watch = server.http.get(made["links"]["self"]).json()
    assert (
        "active_jobs" in watch["problem"] and watch["due_at"] is not None and token.id == watch["owner"]
    )
    _, other = server.services.tokens.create("other", ["tune"])
    server.http.headers["Authorization"] = f"Bearer {other}"
    for answer in (
        server.http.delete(made["links"]["self"]),
        server.http.post(f"{made['links']['self']}/run"),
    ):
        assert answer.status_code == 403 and "another token" in answer.json()["detail"]


@pytest.mark.slow
def test_what_cannot_be_watched_is_refused(server: RunningServer) -> None:
    failed = post_job(server).json()
    server.services.jobs.finish(failed["id"], "failed", reason="x")
    other = server.http.post("/v1/diagnoses", json={"job": failed["id"], "target": "openvino"}).json()
    for body, said in (
        ({}, "either job or model_sha256"),
        ({"job": failed["id"]}, "no artifact"),
        ({"job": other["id"]}, "no tuning"),
        ({"job": failed["id"], "targets": ["mnn"]}, "leave them out"),
        ({"model_sha256": failed["model_sha256"], "targets": ["foo"]}, "unknown backend"),
        ({"job": failed["id"], "webhook": "http://a.example/"}, "COLLAGE_WEBHOOK_HOSTS"),
    ):
        answer = server.http.post("/v1/watches", json=body)
        assert answer.status_code == 422 and said in answer.text, body
    assert server.http.get("/v1/watches").json() == {"items": [], "next": None}


@pytest.mark.slow
def test_watches_come_in_pages(server: RunningServer) -> None:
    job = post_job(server).json()["id"]
    made = [
        server.http.post("/v1/watches", json={"job": job, "name": f"w{i}"}).json() for i in range(5)
    ]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = server.http.get("/v1/watches", params={"limit": 2, **cursor}).json()
        seen += [each["id"] for each in page["items"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert seen == [each["id"] for each in reversed(made)]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('["x"]', "COLLAGE_ENVIRONMENTS"),
        ("nonsense", 'such as {"next": "/opt/next/bin/python"}'),
        ('{"next": "bin/python"}', "write its whole path"),
        ('{"next": "/nowhere/python"}', "write its whole path"),
        ('{"a b": "/bin/sh"}', "cannot be a name"),
    ],
)
def test_environments_are_checked_at_start(
    monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    monkeypatch.setenv("COLLAGE_ENVIRONMENTS", value)
    with pytest.raises(BadInputError, match=re.escape(said)):
        read_settings()


@pytest.mark.slow
def test_a_slower_environment_is_told_on_the_server(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tuned, watched, measured in two environments: the whole way."""
    site = planted.install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    python = interpreter(tmp_path, "other", {planted.ENVIRONMENT: "60"}, [site])
    server = start_server(runners=1, environments={"next": str(python)})
    model = bytes(long_model(20).SerializeToString())
    sha256 = server.http.post("/v1/models", files={"model": ("net.onnx", model)}).json()["sha256"]
    body = {
        "model_sha256": sha256,
        "targets": ["planted -slow=n7 -slow_us=3000"],
        "options": {"strategy": "single", "threads": 1, "time_limit_s": 20},
    }
    made = server.http.post("/v1/watches", json=body).json()
    _until(server, made["links"]["job"], "done", "failed", within_s=200)

    def measured() -> dict[str, Any]:
        for job in server.http.get("/v1/jobs", params={"kind": "watch"}).json()["items"]:
            return _until(server, job["links"]["self"], "done", "failed", within_s=400)
        return {}

    deadline = time.monotonic() + 60
    while not (job := measured()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert job["state"] == "done", job
    report = server.http.get(job["links"]["report"]).json()
    _check(WatchReportView, report)
    (result,) = report["results"]
    assert (
        result["environment"] == "next"
        and result["verdict"] == "slower"
        and result["interval"][0] > 1.2
    )
    assert any("n7" in block["nodes"] for block in result["blocks"])
    assert str(tmp_path) not in json.dumps(report)
    watch = server.http.get(made["links"]["self"]).json()
    assert watch["last"]["verdict"] == "slower" and watch["last"]["latency_us"]
    assert job["summary"]["verdict"] == "slower"
    page = server.http.get(job["links"]["page"]).text
    assert "It is slower in next" in page

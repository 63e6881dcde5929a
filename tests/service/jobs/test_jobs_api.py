"""Jobs over HTTP: made, listed, watched, cancelled; the same request twice; what is not there."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from collage.cost_db.jobs.job import JobResult
from tests.service.conftest import ENGINES, RunningServer, StartServer, post_job

pytestmark = ENGINES

_NOBODY = "0" * 32


def _events(server: RunningServer, job_id: str, after: int | None = None) -> list[tuple[int, str, Any]]:
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    text = server.http.get(f"/v1/jobs/{job_id}/events", headers=headers).text
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def test_a_job_is_made_and_found(server: RunningServer) -> None:
    data = {"targets": '["openvino  -precision=bf16", "onnxruntime"]', "options": '{"tolerance": 0.01}'}
    answer = post_job(server, data=data)
    assert answer.status_code == 201
    job = answer.json()
    assert answer.headers["Location"] == f"/v1/jobs/{job['id']}" == job["links"]["self"]
    assert job["state"] == "queued" and job["position"] == 1 and job["owner"] == "local"
    assert job["targets"] == ["openvino -precision=bf16", "onnxruntime"]
    assert job["options"] == {"tolerance": 0.01}
    assert server.http.get(job["links"]["self"]).json() == job
    assert post_job(server).json()["position"] == 2


def test_a_job_for_a_model_uploaded_before(server: RunningServer) -> None:
    model = server.http.post("/v1/models", files={"model": ("m.onnx", b"bytes")})
    assert model.status_code == 201
    sha256 = model.json()["sha256"]
    assert server.http.get(model.headers["Location"]).json() == model.json()
    assert [m["sha256"] for m in server.http.get("/v1/models").json()["items"]] == [sha256]
    wanted = {"model_sha256": sha256, "targets": ["onnxruntime"], "options": {"seed": 3}}
    job = server.http.post("/v1/jobs", json=wanted)
    assert job.status_code == 201 and job.json()["name"] == "m.onnx"
    assert server.http.post("/v1/jobs", json={**wanted, "model_sha256": "0" * 64}).status_code == 404
    for bad in ({"seed": "3"}, {"plan": 3}):
        assert server.http.post("/v1/jobs", json={**wanted, "options": bad}).status_code == 422
    assert server.http.post("/v1/jobs", json={**wanted, "extra": 1}).status_code == 422
    assert server.http.post("/v1/jobs", json={**wanted, "targets": "onnxruntime"}).status_code == 422
    assert server.http.delete(f"/v1/models/{sha256}").status_code == 204
    assert server.http.delete(f"/v1/models/{sha256}").status_code == 404
    assert server.http.get(f"/v1/models/{sha256}").status_code == 404


@pytest.mark.slow
def test_a_job_for_a_plan_takes_the_plan_s_targets(server: RunningServer) -> None:
    parts = [
        {"target": "openvino  -precision=f32", "nodes": ["a"]},
        {"target": "onnxruntime", "nodes": ["b"], "latency_us": None},
    ]
    plan = {"format": 1, "model_sha256": "0" * 64, "partitions": [*parts, parts[0]]}
    options = {"plan": plan}
    job = post_job(server, data={"targets": "", "options": json.dumps(options)}).json()
    assert job["targets"] == ["openvino -precision=f32", "onnxruntime"]
    stored = {"model_sha256": job["model_sha256"], "options": options}
    assert server.http.post("/v1/jobs", json=stored).json()["targets"] == job["targets"]
    own = server.http.post("/v1/jobs", json={**stored, "targets": ["onnxruntime"]})
    assert own.json()["targets"] == ["onnxruntime"]
    answer = server.http.post("/v1/jobs", json={**stored, "options": {}})
    assert answer.status_code == 422 and "no target is given" in answer.json()["detail"]
    reading = [{"target": "onnxruntime -rules=/etc/passwd", "nodes": ["a"]}]
    files = {"plan": {**plan, "partitions": reading}}
    answer = server.http.post("/v1/jobs", json={**stored, "options": files})
    assert answer.status_code == 422 and "names a file" in answer.json()["detail"]


def test_an_idempotency_key_makes_one_job(server: RunningServer) -> None:
    key = {"Idempotency-Key": "abc"}
    first = post_job(server, headers=key).json()
    assert post_job(server, headers=key).json()["id"] == first["id"]
    other = post_job(server, b"another model", headers=key)
    assert other.status_code == 422
    assert other.json()["type"] == "urn:collage:problem:idempotency-conflict"
    assert post_job(server).json()["id"] != first["id"]


def test_lists_are_pages_without_gaps(server: RunningServer) -> None:
    made = [post_job(server).json()["id"] for _ in range(5)]
    seen, cursor = [], None
    while True:
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = server.http.get("/v1/jobs", params=query).json()
        seen += [job["id"] for job in page["items"]]
        if (cursor := page["next"]) is None:
            break
    assert seen == made[::-1]
    assert server.http.get("/v1/jobs", params={"state": "done"}).json() == {"items": [], "next": None}
    assert server.http.get("/v1/jobs", params={"cursor": "nonsense"}).status_code == 422
    assert server.http.get("/v1/jobs", params={"limit": 0}).status_code == 422


@pytest.mark.slow
def test_a_waiting_job_is_cancelled_at_once(server: RunningServer) -> None:
    job = post_job(server).json()
    cancelled = server.http.delete(job["links"]["self"]).json()
    assert cancelled["state"] == "cancelled" and cancelled["position"] is None
    assert server.http.post(f"{job['links']['self']}/cancel").json() == cancelled
    assert [data["state"] for _, kind, data in _events(server, job["id"]) if kind == "state"] == [
        "queued",
        "cancelled",
    ]


@pytest.mark.slow
def test_events_go_on_after_the_last_one_seen(server: RunningServer) -> None:
    job = post_job(server).json()
    jobs = server.services.jobs
    for done in range(3):
        jobs.append_event(job["id"], "progress", {"stage": "measure", "message": str(done)})
    jobs.request_cancel(job["id"])
    everything = _events(server, job["id"])
    assert [number for number, _, _ in everything] == list(range(1, len(everything) + 1))
    assert _events(server, job["id"], after=2) == everything[2:]
    assert _events(server, job["id"], after=len(everything)) == []
    bad = server.http.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": "x"})
    assert bad.status_code == 422


@pytest.mark.slow
def test_events_come_as_they_happen(server: RunningServer) -> None:
    job = post_job(server).json()
    with server.http.stream("GET", job["links"]["events"]) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: state"
        server.services.jobs.append_event(job["id"], "progress", {"stage": "search", "message": "now"})
        assert next(line for line in lines if "search" in line)
        server.http.delete(job["links"]["self"])
        rest = list(lines)
    assert "event: state" in rest and any('"cancelled"' in line for line in rest)


def test_results_are_there_when_the_job_is_done(server: RunningServer) -> None:
    job = post_job(server).json()
    for what in ("artifact", "report", "plan", "graph"):
        early = server.http.get(f"{job['links']['self']}/{what}")
        assert early.status_code == 409 and early.json()["state"] == "queued"
    services = server.services
    hashes = {}
    for name, data in {"artifact": b"onnx", "report": b'{"a": 1}', "plan": b"{}"}.items():
        blob = services.files.keep_bytes(data)
        services.register.add(blob.sha256, blob.size_bytes, "application/octet-stream")
        hashes[name] = blob.sha256
    services.jobs.finish(job["id"], "done", result=JobResult(**hashes))
    done = server.http.get(job["links"]["self"]).json()
    artifact = server.http.get(done["links"]["artifact"])
    assert artifact.content == b"onnx"
    assert artifact.headers["ETag"] == f'"{hashes["artifact"]}"'
    assert 'filename="small.collage.onnx"' in artifact.headers["Content-Disposition"]
    assert server.http.get(done["links"]["report"]).json() == {"a": 1}
    assert server.http.get(done["links"]["plan"]).json() == {}
    services.files.delete(hashes["artifact"])
    assert server.http.get(done["links"]["artifact"]).status_code == 410


@pytest.mark.slow
def test_missing_job_is_a_problem(server: RunningServer) -> None:
    for path in (
        f"/v1/jobs/{_NOBODY}",
        f"/v1/jobs/{_NOBODY}/events",
        f"/v1/jobs/{_NOBODY}/artifact",
        "/v2",
    ):
        answer = server.http.get(path)
        assert answer.status_code == 404
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json()["type"] == "urn:collage:problem:not-found"
        assert answer.json()["request_id"] == answer.headers["X-Request-ID"]
    assert server.http.get("/v1/jobs/../../etc").status_code == 404
    assert server.http.get("/v1/jobs/ABC").status_code == 422
    assert server.http.put("/v1/jobs").status_code == 405


@pytest.mark.slow
def test_tune_may_answer_before_the_work_is_done(server: RunningServer) -> None:
    answer = server.http.post(
        "/v1/tune",
        files={"model": ("m.onnx", b"x")},
        data={"targets": "onnxruntime"},
        headers={"Prefer": "respond-async"},
    )
    assert answer.status_code == 202
    assert answer.headers["Preference-Applied"] == "respond-async"
    assert server.http.get(answer.headers["Location"]).json()["state"] == "queued"


@pytest.mark.slow
def test_too_many_streams_or_uploads_get_a_retry_later(start_server: StartServer) -> None:
    server = start_server(max_event_streams=1)
    job = post_job(server).json()
    with server.http.stream("GET", job["links"]["events"]) as first:
        lines = first.iter_lines()  # kept: a dropped iterator closes the stream
        assert next(lines) == "event: state"
        second = server.http.get(job["links"]["events"])
        assert second.status_code == 429 and "Retry-After" in second.headers
    server.http.delete(job["links"]["self"])


@pytest.mark.slow
def test_a_job_of_a_lost_server_is_taken_up_again(start_server: StartServer) -> None:
    """The job row outlives its server: the next one sees it with its model."""
    first = start_server()
    job = post_job(first, b"kept").json()
    first.close()
    second = start_server()
    found = second.http.get(job["links"]["self"]).json()
    assert found["state"] == "queued"
    assert second.services.files.read(found["model_sha256"]) == b"kept"


@pytest.mark.slow
def test_openapi_is_served_and_names_every_operation(server: RunningServer) -> None:
    document: dict[str, Any] = server.http.get("/openapi.json").json()
    operations = [
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    ]
    assert len(operations) == len(set(operations)) >= 20
    page: httpx.Response = server.http.get("/docs")
    assert "swagger-ui" in page.text and "inline" not in page.headers["Content-Security-Policy"]

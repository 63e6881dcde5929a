"""Jobs that people find again: labels, notes, filters, reruns and removal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from collage.cost_db.jobs.job import JobResult
from collage.cost_db.tokens import Quotas
from tests.service.conftest import ENGINES, RunningServer, StartServer, post_job

pytestmark = ENGINES


def _ids(server: RunningServer, **query: Any) -> list[str]:
    answer = server.http.get("/v1/jobs", params=query)
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["items"]]


def _finish(server: RunningServer, job_id: str, **files: bytes) -> dict[str, str]:
    """End a job with results of its own, as its runner does."""
    services, hashes = server.services, {}
    for name, data in files.items():
        blob = services.files.keep_bytes(data)
        services.register.add(blob.sha256, blob.size_bytes, "application/octet-stream")
        hashes[name] = blob.sha256
    services.jobs.finish(job_id, "done", result=JobResult(**hashes))
    return hashes


def _there(server: RunningServer, sha256: str) -> bool:
    on_disk, known = server.services.files.has(sha256), server.services.register.get(sha256)
    assert on_disk is (known is not None)
    return on_disk


@pytest.mark.slow
def test_labels_and_notes_are_kept_and_changed(server: RunningServer) -> None:
    job = post_job(server, data={"labels": "nightly, resnet,nightly", "note": "first try"}).json()
    assert job["labels"] == ["nightly", "resnet"] and job["note"] == "first try"
    url = job["links"]["self"]
    changed = server.http.patch(url, json={"labels": ["b", "a"]}).json()
    assert changed["labels"] == ["a", "b"] and changed["note"] == "first try"
    changed = server.http.patch(url, json={"note": ""}).json()
    assert changed["labels"] == ["a", "b"] and changed["note"] is None
    assert server.http.get(url).json() == changed
    for bad in (
        {"labels": [""]},
        {"labels": [" a"]},
        {"labels": ["a\nb"]},
        {"labels": ["x" * 101]},
        {"labels": [str(n) for n in range(21)]},
        {"labels": "a"},
        {"note": "x" * 10_001},
        {"name": "other"},
    ):
        answer = server.http.patch(url, json=bad)
        assert answer.status_code == 422, bad
    assert post_job(server, data={"labels": '["a", 1]'}).status_code == 422
    assert server.http.get(url).json() == changed


@pytest.mark.slow
def test_filters_find_jobs(server: RunningServer) -> None:
    files = {"model": ("ResNet_50%.onnx", b"resnet")}
    data = {"targets": "onnxruntime", "labels": "nightly,eu"}
    first = server.http.post("/v1/jobs", files=files, data=data).json()
    second = post_job(server, data={"labels": "nightly"}).json()
    third = post_job(server, b"other").json()
    a, b, c = first["id"], second["id"], third["id"]
    assert _ids(server, name="resnet") == [a] and _ids(server, name="_50%") == [a]
    assert _ids(server, name="%") == [a] and _ids(server, name="SMALL") == [c, b]
    assert _ids(server, label="nightly") == [b, a] and _ids(server, label=["eu", "nightly"]) == [a]
    assert _ids(server, label="night") == []
    assert _ids(server, model=second["model_sha256"]) == [b]
    assert _ids(server, model="0" * 64) == []
    assert _ids(server, since=second["created_at"]) == [c, b]
    assert _ids(server, until=second["created_at"]) == [a]
    assert _ids(server, owner="local", state="queued", label="nightly", limit=1) == [b]
    assert _ids(server, owner="nobody") == []
    for bad in (
        {"model": "x"},
        {"since": "yesterday"},
        {"since": "0001-01-01T00:00:00+14:00"},
        {"until": "9999-12-31T23:59:59-14:00"},
        {"state": "asleep"},
    ):
        assert server.http.get("/v1/jobs", params=bad).status_code == 422, bad


@pytest.mark.slow
def test_a_rerun_repeats_a_job_with_changes(server: RunningServer) -> None:
    options = {"tolerance": 0.01, "seed": 7, "pins": ["Conv=onnxruntime"]}
    files = {"model": ("m.onnx", b"bytes"), "inputs": ("i.npz", b"npz")}
    data = {"targets": "onnxruntime,openvino", "options": json.dumps(options), "labels": "a"}
    job = server.http.post("/v1/jobs", files=files, data=data).json()
    url = f"{job['links']['self']}/rerun"
    same = server.http.post(url, json={})
    assert same.status_code == 201 and same.headers["Location"] == f"/v1/jobs/{same.json()['id']}"
    for name in ("name", "model_sha256", "targets", "options", "labels"):
        assert same.json()[name] == job[name]
    assert same.json()["rerun_of"] == job["id"] and job["rerun_of"] is None
    stored = server.services.jobs.get(same.json()["id"])
    assert stored is not None and stored.inputs_sha256 == stored.spec["inputs_sha256"]
    changes = {
        "targets": ["mnn", "onnxruntime"],
        "options": {"seed": None, "pins": ["Conv=mnn"], "fresh": True},
        "labels": [],
        "note": "on mnn",
    }
    other = server.http.post(url, json=changes).json()
    assert other["targets"] == ["mnn", "onnxruntime"] and other["labels"] == []
    assert other["options"] == {"tolerance": 0.01, "pins": ["Conv=mnn"], "fresh": True}
    key = {"Idempotency-Key": "k"}
    again = [server.http.post(url, json={}, headers=key).json()["id"] for _ in range(2)]
    assert again[0] == again[1]
    bad = server.http.post(url, json={"options": {"seed": -1}})
    assert bad.status_code == 422 and "options.seed" in bad.json()["detail"]
    assert server.http.post(url, json={"color": 1}).status_code == 422
    server.services.files.delete(job["model_sha256"])
    assert server.http.post(url, json={}).status_code == 410


@pytest.mark.slow
def test_an_ended_job_is_removed_with_its_own_files(server: RunningServer) -> None:
    jobs = [post_job(server, b"model").json() for _ in range(2)]
    mine = _finish(server, jobs[0]["id"], artifact=b"a", report=b'{"r": 1}', plan=b"shared")
    other = _finish(server, jobs[1]["id"], artifact=b"b", plan=b"shared")
    url = jobs[0]["links"]["self"]
    assert server.http.post(f"{url}/cancel").json()["state"] == "done"
    assert server.http.delete(url).status_code == 204
    assert server.http.get(url).status_code == server.http.delete(url).status_code == 404
    assert server.http.get(f"{url}/events").status_code == 404
    assert not _there(server, mine["artifact"]) and not _there(server, mine["report"])
    assert _there(server, mine["plan"]) and _there(server, jobs[0]["model_sha256"])
    assert _ids(server) == [jobs[1]["id"]]
    server.http.delete(f"/v1/models/{jobs[0]['model_sha256']}")
    assert server.http.delete(jobs[1]["links"]["self"]).status_code == 204
    for sha256 in (*other.values(), jobs[1]["model_sha256"]):
        assert not _there(server, sha256)
    assert post_job(server, b"model").status_code == 201


@pytest.mark.slow
def test_a_job_that_has_not_ended_is_cancelled_first(server: RunningServer) -> None:
    url = post_job(server).json()["links"]["self"]
    answer = server.http.delete(url)
    assert answer.status_code == 200 and answer.json()["state"] == "cancelled"
    assert server.http.get(url).status_code == 200
    running = post_job(server).json()
    assert server.services.jobs.next_queued("worker", 60.0) is not None
    for _ in range(2):
        assert server.http.delete(running["links"]["self"]).json()["state"] == "running"
    stored = server.services.jobs.get(running["id"])
    assert stored is not None and stored.cancel_requested


@pytest.mark.slow
def test_streams_of_a_removed_job_end(server: RunningServer) -> None:
    job = post_job(server).json()
    with server.http.stream("GET", job["links"]["events"]) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: state"
        server.services.jobs.finish(job["id"], "failed", reason="x")
        server.services.retention.remove(job["id"])
        list(lines)


@pytest.mark.slow
def test_only_owner_and_admin_change_a_job(start_server: StartServer) -> None:
    server = start_server(authentication="on")

    def bearer(*scopes: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {server.services.tokens.create('t', scopes)[1]}"}

    owner, other, admin, reader = bearer("tune"), bearer("tune"), bearer("admin"), bearer("read")
    url = post_job(server, headers=owner).json()["links"]["self"]
    for header, status in ((other, 403), (reader, 403)):
        assert server.http.patch(url, json={"note": "x"}, headers=header).status_code == status
        assert server.http.post(f"{url}/cancel", headers=header).status_code == status
        assert server.http.delete(url, headers=header).status_code == status
    rerun = server.http.post(f"{url}/rerun", json={}, headers=other)
    assert rerun.status_code == 201 and rerun.json()["owner"] != ""
    assert server.http.post(f"{url}/rerun", json={}, headers=reader).status_code == 403
    assert server.http.patch(url, json={"note": "x"}, headers=owner).json()["note"] == "x"
    assert server.http.post(f"{url}/cancel", headers=admin).json()["state"] == "cancelled"
    assert server.http.delete(url, headers=owner).status_code == 204


@pytest.mark.slow
def test_a_full_quota_says_what_helps(start_server: StartServer) -> None:
    server = start_server(authentication="on")
    quotas = Quotas(stored_bytes=10, active_jobs=1)
    _, secret = server.services.tokens.create("t", ["tune"], quotas=quotas)
    header = {"Authorization": f"Bearer {secret}"}
    assert post_job(server, b"x" * 9, headers=header).status_code == 201
    many = post_job(server, b"x" * 9, headers=header)
    assert many.status_code == 429
    assert "wait until one has ended, cancel one" in many.json()["detail"]
    large = server.http.post("/v1/models", files={"model": ("m", b"y" * 8)}, headers=header)
    assert large.status_code == 429
    detail = large.json()["detail"]
    assert "has 8 bytes" in detail and "9 of the 10" in detail
    assert "DELETE /v1/models/{sha256}" in detail and "wait" not in detail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, [0, 1, 2]),
        ({"keep_results_bytes": 30}, [1, 2]),
        ({"keep_results_bytes": 0}, []),
        ({"keep_jobs_days": 1.0}, [0, 1, 2]),
        ({"keep_jobs_days": 1e-9}, []),
    ],
)
def test_retention_keeps_what_the_settings_say(
    start_server: StartServer, settings: dict[str, Any], kept: list[int]
) -> None:
    server = start_server(**settings)
    ids, hashes = [], []
    for n in range(3):
        job = post_job(server).json()
        ids.append(job["id"])
        hashes.append(_finish(server, job["id"], artifact=b"%d" % n * 10, report=b"shared")["artifact"])
    waiting = post_job(server).json()["id"]
    assert server.services.retention.tidy() == 3 - len(kept)
    assert _ids(server) == [waiting, *(ids[n] for n in reversed(kept))]
    assert [_there(server, sha256) for sha256 in hashes] == [n in kept for n in range(3)]

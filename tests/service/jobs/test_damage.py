"""One request never hurts another: what cannot be kept is refused, and a damaged row hides nothing."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import sqlalchemy as sa

from tests.service.conftest import ENGINES, RunningServer, StartServer, post_job

pytestmark = ENGINES


def _nested(depth: int) -> Any:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"plan": value}
    return value


def _spoil(server: RunningServer, job_id: str, **columns: str) -> None:
    """Write JSON into a row as an older server, or a disk, may have left it."""
    names = ", ".join(f"{name} = :{name}" for name in columns)
    change = sa.text(f"UPDATE jobs SET {names} WHERE id = :id")
    connections = server.services.database.connections
    connections.write(lambda connection: connection.execute(change, {"id": job_id, **columns}))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [33, 300, 900, 100_000])
def test_a_deep_option_is_refused_and_nothing_is_stored(server: RunningServer, depth: int) -> None:
    text = '{"plan":' * depth + "{}" + "}" * depth
    model = server.http.post("/v1/models", files={"model": ("m", b"x")}).json()["sha256"]
    stored = f'{{"model_sha256":"{model}","targets":["onnxruntime"],"options":{text}}}'
    typed = {"Content-Type": "application/json"}
    for answer in (
        post_job(server, data={"options": text}),
        post_job(server, data={"targets": "[" * depth + "]" * depth}),
        server.http.post("/v1/jobs", content=stored, headers=typed),
    ):
        assert answer.status_code == 422, answer.text
        assert (
            "nested deeper than 32 levels" in answer.json()["detail"]
            or "plan" in answer.json()["detail"]
        )
    assert server.http.get("/v1/jobs").json()["items"] == []


@pytest.mark.slow
def test_every_json_body_is_guarded(server: RunningServer) -> None:
    job = post_job(server).json()["id"]
    paths = server.http.get("/openapi.json").json()["paths"]
    asked = [
        (method, path.format(job_id=job))
        for path, methods in paths.items()
        for method, operation in methods.items()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    ]
    assert len(asked) >= 3
    typed = {"Content-Type": "application/json"}
    for method, path in asked:
        for depth in (40, 300, 900, 100_000):
            body = '{"a":' * depth + "1" + "}" * depth
            answer = server.http.request(method, path, content=body, headers=typed)
            assert answer.status_code == 422, (path, depth)
            assert "nested deeper than 32 levels" in answer.json()["detail"]
        large = server.http.request(method, path, content=b'"' + b"x" * (1 << 20) + b'"', headers=typed)
        assert large.status_code == 413
        assert server.http.request(method, path, content=b"{}").status_code == 415
        for odd in (
            "NaN",
            '{"a": 1e999}',
            '{"a": "\\u0000"}',
            '{"a": "\\ud800"}',
            "9" * 5000,
            "{",
            "[]",
        ):
            assert server.http.request(method, path, content=odd, headers=typed).status_code == 422, odd
    assert len(server.http.get("/v1/jobs").json()["items"]) == 1


_GOOD = {"name": "small.onnx", "targets": ["onnxruntime"], "options": {}}
_SPOILED = {
    "deep": json.dumps({**_GOOD, "options": {"plan": _nested(300)}}),
    "deeper than any reader": '{"a":' * 2000 + "1" + "}" * 2000,
    "empty": "{}",
    "no object": "[1]",
    "old option": json.dumps({**_GOOD, "options": {"dims": {"n": -1}}}),
    "odd types": json.dumps({"name": 3, "targets": "x", "options": [1]}),
    "odd texts": json.dumps({**_GOOD, "targets": [1]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("spoiled", _SPOILED)
def test_a_damaged_row_is_shown_as_damaged(server: RunningServer, spoiled: str) -> None:
    good, bad = post_job(server).json(), post_job(server).json()
    _spoil(server, bad["id"], spec=_SPOILED[spoiled])
    items = server.http.get("/v1/jobs").json()["items"]
    assert [item["id"] for item in items] == [bad["id"], good["id"]]
    assert items[1]["damaged"] is None and items[1]["options"] == {}
    assert "cannot be read" in items[0]["damaged"] and len(items[0]["damaged"]) < 1000
    url = bad["links"]["self"]
    assert server.http.get(url).json()["damaged"] == items[0]["damaged"]
    assert server.http.get("/").status_code == server.http.get(bad["links"]["page"]).status_code == 200
    again = server.http.post(f"{url}/rerun", json={})
    assert again.status_code == 422, again.text
    assert server.http.delete(url).json()["state"] == "cancelled"
    assert server.http.delete(url).status_code == 204
    assert [item["id"] for item in server.http.get("/v1/jobs").json()["items"]] == [good["id"]]


def test_damaged_progress_hides_no_list(server: RunningServer) -> None:
    job = post_job(server).json()
    for odd in ('{"done": 1}', "[1]", '{"stage": 1, "message": [], "done": "x", "total": null}'):
        _spoil(server, job["id"], progress=odd)
        assert "progress" in server.http.get("/v1/jobs").json()["items"][0]["damaged"]


@pytest.mark.slow
@pytest.mark.parametrize("spoiled", _SPOILED)
def test_a_job_that_cannot_be_started_fails_with_the_reason(
    start_server: StartServer, spoiled: str
) -> None:
    waiting = start_server()
    job = post_job(waiting).json()
    _spoil(waiting, job["id"], spec=_SPOILED[spoiled])
    running = start_server(runners=1)
    deadline = time.monotonic() + 20
    while (now := running.http.get(job["links"]["self"]).json())["state"] in ("queued", "running"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert now["state"] == "failed" and now["attempt"] == 1
    assert 0 < len(now["reason"]) <= 2000

"""Streams of events: they end with the job, with their client, and with their token."""

from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from collage.cost_db.jobs.job_events import JobEvent
from collage.service.jobs.event_feed import encode
from tests.service.conftest import RunningServer, StartServer, post_job


def _tell(server: RunningServer, job: str, times: int) -> None:
    for number in range(times):
        server.services.jobs.append_event(job, "progress", {"stage": "x", "message": str(number)})


@pytest.mark.slow
@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_stream_ends_soon_after_its_token(start_server: StartServer, how: str) -> None:
    server = start_server(authentication="on")
    ends = datetime.now(UTC) + timedelta(seconds=3) if how == "expired" else None
    token, secret = server.services.tokens.create("watcher", ["tune"], expires_at=ends)
    headers = {"Authorization": f"Bearer {secret}"}
    job = post_job(server, headers=headers).json()["id"]
    after_end = 0
    with server.http.stream("GET", f"/v1/jobs/{job}/events", headers=headers, timeout=20) as stream:
        lines = stream.iter_lines()
        next(lines)
        if how == "revoked":
            server.services.tokens.revoke(token.id)
        ended = time.monotonic() + (3 if ends else 0)
        for number, line in enumerate(lines):
            if line.startswith("event: progress") and time.monotonic() > ended + 3:
                after_end += 1
            if number % 4 == 0:
                _tell(server, job, 1)
            assert time.monotonic() < ended + 12, "the stream goes on"
    assert after_end == 0
    again = server.http.get(f"/v1/jobs/{job}/events", headers=headers)
    assert again.status_code == 401


@pytest.mark.slow
def test_a_quiet_stream_ends_with_its_token_too(start_server: StartServer) -> None:
    server = start_server(authentication="on")
    token, secret = server.services.tokens.create("watcher", ["tune"])
    headers = {"Authorization": f"Bearer {secret}"}
    job = post_job(server, headers=headers).json()["id"]
    begin = time.monotonic()
    with server.http.stream("GET", f"/v1/jobs/{job}/events", headers=headers, timeout=20) as stream:
        lines = stream.iter_lines()
        next(lines)
        server.services.tokens.revoke(token.id)
        for _ in lines:
            pass
    assert time.monotonic() - begin < 8


@pytest.mark.slow
def test_a_stream_goes_on_after_the_last_event_seen(server: RunningServer) -> None:
    job = post_job(server).json()["id"]
    _tell(server, job, 1200)
    server.http.delete(f"/v1/jobs/{job}")
    whole = server.http.get(f"/v1/jobs/{job}/events")
    assert whole.headers["content-type"].startswith("text/event-stream")
    assert [line for line in whole.text.splitlines() if line.startswith("id: ")] == [
        f"id: {number}" for number in range(1, 1203)
    ]
    rest = server.http.get(f"/v1/jobs/{job}/events", headers={"Last-Event-ID": "1200"})
    assert [line for line in rest.text.splitlines() if line.startswith("id: ")] == [
        "id: 1201",
        "id: 1202",
    ]


@pytest.mark.slow
def test_streams_that_are_left_are_forgotten(server: RunningServer) -> None:
    job = post_job(server).json()["id"]
    _tell(server, job, 2000)
    for _ in range(10):
        with httpx.stream("GET", f"{server.url}/v1/jobs/{job}/events") as stream:
            next(stream.iter_lines())
    deadline = time.monotonic() + 5
    while server.services.feed.watchers:
        assert time.monotonic() < deadline, "streams without a client stay open"
        time.sleep(0.05)


@pytest.mark.slow
def test_one_token_leaves_streams_to_others(start_server: StartServer) -> None:
    server = start_server(authentication="on", max_event_streams=4)
    headers = {}
    for name in ("ann", "bob"):
        secret = server.services.tokens.create(name, ["tune"])[1]
        headers[name] = {"Authorization": f"Bearer {secret}"}
    path = post_job(server, headers=headers["ann"]).json()["links"]["events"]
    with contextlib.ExitStack() as stack:

        def status(name: str) -> int:
            stream = server.http.stream("GET", path, headers=headers[name], timeout=20)
            return stack.enter_context(stream).status_code

        assert [status("ann") for _ in range(4)] == [200, 200, 429, 429]
        assert [status("bob") for _ in range(3)] == [200, 200, 429]
    deadline = time.monotonic() + 5
    while server.services.streams._taken.total():
        assert time.monotonic() < deadline, "places of streams that have ended stay taken"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_call_that_waits_for_a_job_ends_with_its_client(server: RunningServer) -> None:
    files, data = {"model": ("m.onnx", b"model")}, {"targets": "onnxruntime"}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/tune", files=files, data=data, timeout=1)
    deadline = time.monotonic() + 5
    while server.services.feed.watchers:
        assert time.monotonic() < deadline, "it waits for nobody"
        time.sleep(0.05)
    assert [job["state"] for job in server.http.get("/v1/jobs").json()["items"]] == ["queued"]


def test_an_event_that_no_json_can_hold_is_told_as_such() -> None:
    deep: object = 1
    for _ in range(400):
        deep = [deep]
    event = JobEvent(3, "progress", {"data": deep}, datetime.now(UTC))
    assert b"cannot be shown" in encode(event) and encode(event).startswith(b"event: progress\nid: 3\n")

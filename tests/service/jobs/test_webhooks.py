"""Webhooks against a real receiver: signed, only to allowed hosts, tried again, never in a runner's way."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import ValidationError

from collage.service.jobs import webhooks
from collage.service.settings import Settings
from tests.service.conftest import ENGINES, RunningServer, StartServer, post_job

pytestmark = ENGINES

_SECRET = "a secret of the team"


class _Receiver:
    """Takes requests, and answers each with the next status (the last one again and again)."""

    def __init__(self) -> None:
        self.statuses = [200]
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.hold = threading.Event()
        self.hold.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.seen.append((self.path, dict(self.headers.items()), body))
                receiver.hold.wait(20)
                first, *rest = receiver.statuses
                receiver.statuses = rest or [first]
                self.send_response(first)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST  # noqa: N815 - the names are those of the base class

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[_Receiver]:
    made = _Receiver()
    yield made
    made.close()


def _start(start_server: StartServer, receiver: _Receiver) -> RunningServer:
    return start_server(webhook_hosts=(receiver.host,), webhook_secret=_SECRET)


def _settled(server: RunningServer, url: str) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while (found := server.http.get(url).json()["webhook"])["state"] in (None, "waiting"):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    assert isinstance(found, dict)
    return found


def test_the_end_of_a_job_is_told_and_signed(start_server: StartServer, receiver: _Receiver) -> None:
    server = _start(start_server, receiver)
    hook = f"http://{receiver.host}/ended?key=hidden"
    job = post_job(server, data={"webhook": hook, "labels": "a"}).json()
    shown = {"url": f"http://{receiver.host}/ended", "state": None, "tries": 0}
    assert job["webhook"] == shown
    assert "hidden" not in server.http.get("/v1/jobs").text
    server.http.post(f"{job['links']['self']}/cancel")
    assert _settled(server, job["links"]["self"]) == {**shown, "state": "delivered", "tries": 1}
    ((path, headers, body),) = receiver.seen
    assert path == "/ended?key=hidden"
    said = json.loads(body)
    assert said["type"] == "job.cancelled" and said["job"] == job["id"] and said["labels"] == ["a"]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = base64.b64encode(hmac.new(_SECRET.encode(), signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{digest}" and headers["webhook-id"] == job["id"]
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60


@pytest.mark.slow
def test_a_webhook_is_tried_again_and_then_given_up(
    start_server: StartServer, receiver: _Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "RETRY_S", (0.01, 0.01))
    server = _start(start_server, receiver)
    hook = f"http://{receiver.host}/"
    for statuses, state, tries in (([500, 302, 204], "delivered", 3), ([307], "failed", 3)):
        receiver.seen.clear()
        receiver.statuses = statuses
        job = post_job(server, data={"webhook": hook}).json()
        server.services.jobs.finish(job["id"], "failed", reason="x")
        found = _settled(server, job["links"]["self"])
        assert (found["state"], found["tries"]) == (state, tries)
        assert [path for path, _, _ in receiver.seen] == ["/"] * tries, "no redirect is followed"


@pytest.mark.slow
def test_a_webhook_outlives_its_server(start_server: StartServer, receiver: _Receiver) -> None:
    first = _start(start_server, receiver)
    receiver.statuses = [503]
    job = post_job(first, data={"webhook": f"http://{receiver.host}/"}).json()
    first.close()
    quiet = start_server()
    quiet.services.jobs.finish(job["id"], "failed", reason="x")
    receiver.statuses = [200]
    second = _start(start_server, receiver)
    assert _settled(second, job["links"]["self"])["state"] == "delivered"


@pytest.mark.slow
def test_a_slow_receiver_holds_up_nobody(start_server: StartServer, receiver: _Receiver) -> None:
    receiver.hold.clear()
    server = start_server(
        webhook_hosts=(receiver.host,), webhook_secret=_SECRET, runners=1, max_upload_bytes=100
    )
    slow = post_job(server, b"no model", data={"webhook": f"http://{receiver.host}/"}).json()
    other = post_job(server, b"no model").json()
    deadline = time.monotonic() + 60
    while server.http.get(other["links"]["self"]).json()["state"] != "failed":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert receiver.seen, "it was called, and has not answered yet"
    assert server.http.get(slow["links"]["self"]).json()["webhook"]["state"] == "waiting"
    receiver.hold.set()
    assert _settled(server, slow["links"]["self"])["state"] == "delivered"


@pytest.mark.slow
@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "http://localhost/",
        "http://127.0.0.1:1/",
        "file:///etc/passwd",
        "ftp://hooks.example/",
        "//hooks.example/",
        "http://user:password@hooks.example/",
        "http://hooks.example@evil.example/",
        "http://hooks.example.evil.example/",
        "http://evil.example/#hooks.example",
        "http://hooks.example:99999/",
        "http://[::1",
        "http://hooks.example/a b",
        "http://hooks.example/" + "x" * 2000,
    ],
)
def test_other_addresses_are_refused(start_shared: StartServer, url: str) -> None:
    server = start_shared(webhook_hosts=("hooks.example",), webhook_secret=_SECRET)
    answer = post_job(server, data={"webhook": url})
    assert answer.status_code == 422 and answer.json()["errors"][0]["where"] == "webhook"
    server.close()


@pytest.mark.slow
def test_a_server_without_hosts_takes_no_webhook(server: RunningServer) -> None:
    answer = post_job(server, data={"webhook": "https://hooks.example/"})
    assert answer.status_code == 422 and "COLLAGE_WEBHOOK_HOSTS" in answer.json()["detail"]
    with pytest.raises(ValidationError, match="needs COLLAGE_WEBHOOK_SECRET"):
        Settings(webhook_hosts=("hooks.example",))
    assert _SECRET not in repr(Settings(webhook_hosts=("a",), webhook_secret=_SECRET))  # type: ignore[arg-type]

"""Logs hold no secrets and no local variables, and one bad request never fills them."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import structlog

from collage.cost_db.database import CostDatabase
from collage.cost_db.jobs.jobs import JobStore
from collage.cost_db.tokens import TokenStore
from collage.service.telemetry import logs
from collage.service.telemetry.redaction import redact
from tests.secrets_made import MADE, SecretsMade
from tests.service.conftest import RunningServer, StartServer

SECRET = "collage_0123456789abcdef_AbC-dEf_GhI123456789"


@pytest.fixture(params=["json", "text"])
def lines(request: pytest.FixtureRequest, server_log: Path) -> Iterator[io.StringIO]:
    """What is logged in each form, in place of the file of all tests."""
    before = structlog.get_config()
    out = io.StringIO()
    logs.configure("debug", request.param, out)
    yield out
    structlog.configure(**before)


def _fail(secret: str, depth: int) -> None:
    if depth:
        _fail(secret, depth - 1)
    raise ValueError("broken")


@pytest.mark.parametrize("through", ["structlog", "logging"])
def test_an_error_is_logged_without_local_variables(lines: io.StringIO, through: str) -> None:
    log = structlog.get_logger() if through == "structlog" else logging.getLogger("some.library")
    try:
        _fail(SECRET + "x" * 40, 300)
    except ValueError as error:
        log.error("it failed", exc_info=error)
    said = lines.getvalue()
    assert "ValueError: broken" in said and "in _fail" in said
    assert "GhI123" not in said and "xxxxxx" not in said
    assert len(said) < 10_000


@pytest.mark.parametrize("through", ["structlog", "logging"])
def test_secrets_in_messages_are_hidden(lines: io.StringIO, through: str) -> None:
    log = structlog.get_logger() if through == "structlog" else logging.getLogger("some.library")
    try:
        raise RuntimeError(f"refused {SECRET}")
    except RuntimeError as error:
        log.error(f"sent Authorization: Bearer {SECRET} and {SECRET}", exc_info=error)
    assert "GhI123" not in lines.getvalue() and "collage_0123456789abcdef_" in lines.getvalue()


def test_secrets_in_fields_are_hidden(lines: io.StringIO) -> None:
    headers = {"Authorization": "opaque-7461", "Cookie": "a=opaque-7461", "Accept": "text/html"}
    raw = [(b"cookie", b"collage_token=opaque-7461; other=opaque-7461"), (b"accept", b"*/*")]
    log = structlog.get_logger()
    log.info(
        "request",
        headers=headers,
        raw=raw,
        webhook_secret="opaque-7461",
        nested=[{"token": "opaque-7461"}],
    )
    assert "opaque-7461" not in lines.getvalue() and "text/html" in lines.getvalue()


def test_a_field_of_any_size_is_one_short_line(lines: io.StringIO) -> None:
    deep: object = "x"
    for _ in range(3000):
        deep = [deep]
    structlog.get_logger().info("request", path="p" * 1_000_000, many=list(range(100_000)), deep=deep)
    assert len(lines.getvalue()) < 4000 and lines.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("postgresql://collage:opaque-7461@db/collage", "postgresql://collage:[redacted]@db/collage"),
        ("{'cookie': 'a=opaque-7461', 'b': 1}", "{'cookie': '[redacted]', 'b': 1}"),
        ('{\\"authorization\\": \\"opaque-7461\\"}', '{\\"authorization\\": \\"[redacted]\\"}'),
        ("Proxy-Authorization: Basic b3BhcXVl-7461==", "Proxy-Authorization: [redacted]"),
        ("password=opaque-7461&x=1", "password=[redacted]&x=1"),
        ("https://example.org:8000/a@b said no", "https://example.org:8000/a@b said no"),
    ],
)
def test_texts_are_cleaned_of_what_looks_like_a_secret(text: str, kept: str) -> None:
    assert redact(text) == kept


def test_a_crash_of_a_route_is_one_bounded_entry(server: RunningServer, server_log: Path) -> None:
    def crash() -> None:
        words = "local-variable-" + "7461"
        raise ZeroDivisionError(len(words))

    server.app.add_api_route("/crash", crash)
    answer = server.http.get("/crash", headers={"Authorization": f"Bearer {SECRET}"})
    assert answer.status_code == 500 and answer.json()["type"] == "urn:collage:problem:internal"
    said = [
        line
        for line in server_log.read_text(encoding="utf-8").splitlines()
        if answer.json()["request_id"] in line
    ]
    crashes = [line for line in said if "ZeroDivisionError: 19" in line]
    assert len(crashes) == 1 and len(crashes[0]) < 10_000
    assert "local-variable-7461" not in server_log.read_text(
        encoding="utf-8"
    ) and "GhI123" not in server_log.read_text(encoding="utf-8")


def test_the_watch_over_all_logs_finds_a_secret(tmp_path: Path, start_server: StartServer) -> None:
    """What the whole test run relies on: a token that a test makes is known, and a leak is found."""
    server = start_server(authentication="on")
    _, secret = server.services.tokens.create("watched", ["read"])
    assert secret in MADE.secrets
    watch = SecretsMade()
    watch.note(secret)
    (tmp_path / "quiet.log").write_text("nothing", encoding="utf-8")
    watch.look_into_files(tmp_path)
    assert not watch.leaks
    noisy = tmp_path / "a" / "noisy.log"
    noisy.parent.mkdir()
    noisy.write_text(f"token {secret.split('_', 2)[2]}", encoding="utf-8")
    watch.look_into_files(tmp_path)
    noisy.unlink()
    assert watch.leaks == [str(noisy)]


def _leave_early(port: int, request: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(request)
        client.recv(20)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "text"])
def test_clients_that_leave_are_no_error(tmp_path: Path, sqlite_url: str, form: str) -> None:
    database = CostDatabase(sqlite_url)
    _, secret = TokenStore(database).create("leaver", ["tune"])
    jobs = JobStore(database)
    job = jobs.create({"name": "m", "targets": ["onnxruntime"], "options": {}}, "local")
    for number in range(2000):
        jobs.append_event(job.id, "progress", {"stage": "x", "message": "m" * 300, "number": number})
    database.close()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "COLLAGE_DATA_DIR": str(tmp_path / "data"),
        "COLLAGE_DATABASE_URL": sqlite_url,
        "COLLAGE_PORT": str(port),
        "COLLAGE_RUNNERS": "0",
        "COLLAGE_AUTHENTICATION": "on",
        "COLLAGE_LOG_FORMAT": form,
    }
    log = tmp_path / "serve.log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "collage", "serve"]
        server = subprocess.Popen(command, env=environment, stderr=out)
    transport = httpx.HTTPTransport(retries=8)
    head = f"HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {secret}\r\n"
    watch = f"GET /v1/jobs/{job.id}/events {head}\r\n"
    half = f"POST /v1/jobs {head}Content-Type: application/json\r\nContent-Length: 900\r\n\r\n{{"
    form_half = f"POST /v1/models {head}Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 9\r\n\r\n-"
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=transport) as http:
            http.get("/healthz")
            for _ in range(5):
                _leave_early(port, watch.encode())
                for body in (half, form_half):
                    with socket.create_connection(("127.0.0.1", port)) as client:
                        client.sendall(body.encode())
            begin = time.monotonic()
            assert http.get("/healthz").is_success
            assert time.monotonic() - begin < 2
            time.sleep(1)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    said = log.read_text(encoding="utf-8")
    assert "Traceback" not in said and "rror" not in said.replace("0 errors", "")
    assert len(said) < 20_000 and secret.split("_", 2)[2] not in said
    if form == "json":
        # One line is for people: where it serves. Those before it tell what protects children.
        lines = [line for line in said.splitlines() if not line.startswith("collage serves on ")]
        assert len(lines) == len(said.splitlines()) - 1
        for line in lines:
            json.loads(line)

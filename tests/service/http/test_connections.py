"""Connections without a request: they end soon, and never keep others out."""

from __future__ import annotations

import contextlib
import http.client
import resource
import select
import socket
import time
from urllib.parse import urlsplit

import pytest

from collage.service.http import connections
from tests.service.conftest import RunningServer

_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.5)


def _open(server: RunningServer) -> socket.socket:
    at = urlsplit(server.url)
    assert at.hostname is not None and at.port is not None
    return socket.create_connection((at.hostname, at.port), timeout=5)


def _is_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"GET", _REQUEST])
def test_half_a_head_is_not_waited_for(shared_server: RunningServer, sent: bytes) -> None:
    with _open(shared_server) as client:
        client.sendall(sent)
        assert _is_ended(client)


@pytest.mark.slow
def test_bytes_that_drip_make_it_no_longer(shared_server: RunningServer) -> None:
    begin = time.monotonic()
    with _open(shared_server) as client, pytest.raises(OSError):
        client.sendall(_REQUEST + b"X-Slow: ")
        while True:
            client.sendall(b"x")
            time.sleep(0.05)
            assert time.monotonic() < begin + 5


@pytest.mark.slow
def test_a_later_head_must_be_whole_too(shared_server: RunningServer) -> None:
    with _open(shared_server) as client:
        client.sendall(_REQUEST + b"\r\n")
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.status == 200 and answer.read()
        client.sendall(b"GET /healthz")
        begin = time.monotonic()
        assert _is_ended(client) and time.monotonic() < begin + 3


def test_a_refused_body_leaves_the_connection(shared_server: RunningServer) -> None:
    head = b"POST /v1/nothing HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 8000000\r\n\r\n"
    with _open(shared_server) as client:
        client.sendall(head)
        refused = http.client.HTTPResponse(client)
        refused.begin()
        assert refused.status == 404 and refused.read()
        client.sendall(b"x" * 8_000_000)
        client.sendall(_REQUEST + b"\r\n")
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.status == 200


@pytest.mark.slow
def test_a_body_that_nobody_reads_ends(shared_server: RunningServer) -> None:
    with _open(shared_server) as client, pytest.raises(OSError):
        head = b"POST /v1/nothing HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n"
        client.sendall(head)
        assert client.recv(4096).startswith(b"HTTP/1.1 404")
        for _ in range(100):
            client.sendall(b"x")
            time.sleep(0.05)


def test_a_long_head_is_refused(shared_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 60.0)
    with _open(shared_server) as client, pytest.raises(OSError):
        client.sendall(_REQUEST)
        for _ in range(1000):
            client.sendall(b"X: " + b"x" * 1000 + b"\r\n")
            time.sleep(0.001)


@pytest.mark.slow
def test_an_answer_may_take_longer_than_a_head(server: RunningServer) -> None:
    files, data = {"model": ("m.onnx", b"x")}, {"targets": "onnxruntime"}
    job = server.http.post("/v1/jobs", files=files, data=data).json()
    with server.http.stream("GET", job["links"]["events"]) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: state"
        time.sleep(1)
        server.http.delete(job["links"]["self"])
        assert any("cancelled" in line for line in lines)


def test_idle_connections_give_way(
    shared_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 60.0)
    monkeypatch.setattr(connections, "_most_connections", lambda: 20)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(_open(shared_server)) for _ in range(40)]
        client = stack.enter_context(_open(shared_server))
        client.sendall(_REQUEST + b"\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        ended, _, _ = select.select(idle, [], [], 0)
        assert len(ended) >= 20 and all(_is_ended(each) for each in ended)


def test_half_of_the_descriptors_are_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in ((1024, 512), (20, 16), (resource.RLIM_INFINITY, 32_768)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert connections._most_connections() == most


def test_a_server_may_open_more_files(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1 << 20))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: calls.append(limits))
    connections.raise_file_limit()
    assert calls == [(65_536, 1 << 20)]

"""Bodies that come slowly: they are ended, and keep nobody else from uploading."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from collage.service.http import pace
from collage.service.http.problems import ProblemError
from collage.service.http.slots import Slots
from tests.service.conftest import RunningServer, StartServer, post_job

_FORM = b'--b\r\nContent-Disposition: form-data; name="model"; filename="m"\r\n\r\n'
_KINDS = {
    "/v1/models": "multipart/form-data; boundary=b",
    "/v1/jobs": "application/json",
    "/v1/costs/import": "application/x-ndjson",
}


@pytest.fixture
def quick(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> RunningServer:
    """A server that looks at the speed of bodies each second."""
    monkeypatch.setattr(pace.Pace.__init__, "__defaults__", (1.0,))
    return start_server(min_upload_bytes_s=100, upload_time_limit_s=4)


def _begin(server: RunningServer, path: str, header: str = "") -> socket.socket:
    address = urlsplit(server.url)
    client = socket.create_connection((address.hostname, address.port), timeout=30)
    head = f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\n{header}"
    client.sendall(f"{head}Content-Type: {_KINDS[path]}\r\nContent-Length: 100000\r\n\r\n".encode())
    client.sendall(_FORM)
    return client


def _answer(client: socket.socket) -> str:
    """All that comes until the server closes the connection."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while more := client.recv(4096):
            said += more
    return said.decode()


@pytest.mark.slow
@pytest.mark.parametrize("path", list(_KINDS))
def test_a_body_that_trickles_is_ended(quick: RunningServer, path: str) -> None:
    begin = time.monotonic()
    with _begin(quick, path) as client:
        client.settimeout(0.2)
        said = ""
        while not said:
            assert time.monotonic() < begin + 10, "the slow body is never ended"
            with contextlib.suppress(TimeoutError):
                client.sendall(b"x")
                said = _answer(client)
    assert " 408 " in said and "too-slow" in said and "100 bytes each second" in said


@pytest.mark.slow
def test_a_body_that_stops_is_ended(quick: RunningServer) -> None:
    with _begin(quick, "/v1/models") as client:
        assert " 408 " in _answer(client)
    assert not list(quick.services.spool.path.iterdir()), "what came of it stays on the disk"


@pytest.mark.slow
def test_a_steady_body_has_an_overall_time(quick: RunningServer) -> None:
    begin = time.monotonic()
    with _begin(quick, "/v1/models") as client:
        while time.monotonic() < begin + 12:
            try:
                client.sendall(b"x" * 50)
            except OSError:
                break
            time.sleep(0.1)
            client.settimeout(0.01)
            with contextlib.suppress(TimeoutError):
                if said := client.recv(4096):
                    assert b"longer than 4 s" in said
                    return
            client.settimeout(5)
    raise AssertionError("the upload went on")


@pytest.fixture
def places(start_server: StartServer) -> Iterator[tuple[RunningServer, dict[str, str]]]:
    """A server that wants tokens, where one of them has used up its places for uploads."""
    server = start_server(authentication="on", max_uploads_each=2)
    _, secret = server.services.tokens.create("slow", ["tune"])
    header = {"Authorization": f"Bearer {secret}"}
    line = f"Authorization: Bearer {secret}\r\n"
    with _begin(server, "/v1/models", line), _begin(server, "/v1/models", line):
        deadline = time.monotonic() + 5
        while server.services.uploads._taken.total() < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield server, header


def test_slow_uploads_stop_their_own_token_alone(
    places: tuple[RunningServer, dict[str, str]],
) -> None:
    server, header = places
    refused = post_job(server, headers=header)
    assert refused.status_code == 429 and "2 uploads of yours" in refused.json()["detail"]
    assert refused.headers["Retry-After"]
    _, other = server.services.tokens.create("other", ["tune"])
    assert post_job(server, headers={"Authorization": f"Bearer {other}"}).status_code == 201


def test_places_are_given_back() -> None:
    slots = Slots("uploads", 3, 2)
    with slots.taken_by("a"), slots.taken_by("a"), slots.taken_by("b"):
        for caller, status in (("a", 429), ("c", 503)):
            with pytest.raises(ProblemError) as refused, slots.taken_by(caller):
                pass
            assert refused.value.status == status
    with slots.taken_by("a"), slots.taken_by("a"):
        pass

"""A child that attacks gets nothing: as root and as a plain user, with namespaces and without."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collage.backends.sandbox.landlock import confinable
from collage.backends.sandbox.seccomp import filterable
from tests.backends.sandbox.attacks import ATTACKS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (filterable() and confinable()), reason="needs seccomp and Landlock"),
]

_ROOT = Path(__file__).parents[3]
_USERS = [
    pytest.param(
        "root", marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can try as root")
    ),
    "plain",
]
# Root's children without namespaces keep one capability, as docs/security.md says.
_KEPT = "have capabilities"


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Root-only files and sockets."""
    folder = tmp_path_factory.mktemp("owner")
    name = f"collage-test-{uuid.uuid4().hex}"
    shared = Path("/dev/shm") / name
    shared.touch(0o600)
    secret = folder / "secret"
    secret.write_text("password", encoding="utf-8")
    secret.chmod(0o600)
    with (
        socket.socket(socket.AF_UNIX) as stream,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
        socket.create_server(("127.0.0.1", 0)) as tcp,
    ):
        stream.bind(str(folder / "stream"))
        abstract.bind(f"\0{name}")
        datagrams.bind(str(folder / "datagrams"))
        for server in (stream, abstract):
            server.listen()
        yield {
            "owner": 0,
            "sibling": 0,
            "socket_path": str(folder / "stream"),
            "abstract_name": f"\0{name}",
            "datagram_path": str(folder / "datagrams"),
            "tcp_port": tcp.getsockname()[1],
            "shared_memory": str(shared),
            "secret": str(secret),
        }
    assert shared.read_text(encoding="utf-8") == ""
    shared.unlink()


@pytest.fixture(scope="module", params=_USERS)
def user(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["some", "none"])
def found(user: str, request: pytest.FixtureRequest, around: dict[str, Any]) -> dict[str, Any]:
    """How the attacks went for one user, with namespaces or without."""
    command = [sys.executable, "-m", "tests.backends.sandbox.attacked_owner"]
    done = subprocess.run(
        [*command, user, request.param, json.dumps(around)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=_ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    result["namespaces"] = request.param == "some"
    return result


def test_every_attack_is_refused(found: dict[str, Any]) -> None:
    assert set(found["attacks"]) == set(ATTACKS)
    got = {name: text for name, text in found["attacks"].items() if text.startswith("GOT")}
    if found["user"] == 0 and not found["protections"]["no_capabilities"]:
        assert not found["namespaces"]
        assert "0000000000000002" in got.pop(_KEPT)  # to pass by permission bits, and no other
    assert got == {}


def test_protections_hold_that_are_said_to(found: dict[str, Any]) -> None:
    said = found["protections"]
    assert said["files"] and said["calls"]
    assert said["own_view"] == found["namespaces"]
    assert said["network"] == found["namespaces"]


def test_forks_end_at_the_limit(found: dict[str, Any]) -> None:
    assert 0 < found["forks"] < 1000
    assert found["sibling"] is None  # still runs


@pytest.mark.parametrize("way", ["disk", "disk without names"])
def test_full_disk_is_not_reached(found: dict[str, Any], way: str) -> None:
    kind, reason = found[way][:2]
    assert kind == "out_of_disk"
    assert "its limit is 0.0977 GiB" in reason


@pytest.mark.parametrize("way", ["memory", "memory of three", "memory of one that fled"])
def test_memory_ends_at_the_limit(found: dict[str, Any], way: str) -> None:
    kind, reason = found[way][:2]
    if way == "memory of one that fled" and not found["namespaces"]:
        assert kind == "returned"  # that one was killed, and its parent went on
        return
    assert kind == "out_of_memory"
    assert "its limit is" in reason and "COLLAGE_CHILD_MEMORY_BYTES" in reason

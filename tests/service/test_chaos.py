"""Sudden death and paralysis of the server: the job ends all the same, and nothing is left running."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.service.conftest import small_model

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

_FORM = {"targets": "onnxruntime,openvino", "options": '{"time_limit_s": 5}'}
_LEASE_S = 2


class Machine:
    """`collage serve` as a process of its own, on a data folder that outlives it."""

    def __init__(self, tmp_path: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {
            **os.environ,
            "COLLAGE_PORT": str(port),
            "COLLAGE_DATA_DIR": str(tmp_path / "data"),
            "COLLAGE_DATABASE_URL": f"sqlite:///{tmp_path / 'costs.db'}",
            "COLLAGE_LEASE_S": str(_LEASE_S),
            "COLLAGE_POLL_S": "0.05",
        }
        with (tmp_path / "log.txt").open("ab") as log:
            self.process = psutil.Popen(
                [sys.executable, "-m", "collage", "serve"], env=environment, stderr=log, stdout=log
            )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.http.get("/readyz").raise_for_status()
                return
            except httpx.TransportError:
                assert self.process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)

    def post(self) -> str:
        answer = self.http.post("/v1/jobs", files={"model": ("m.onnx", small_model())}, data=_FORM)
        return str(answer.raise_for_status().json()["links"]["self"])

    def until(self, url: str, *, measured: int = 0, ended: bool = False) -> dict[str, object]:
        """The job once that many costs are stored, or once it has ended."""
        deadline = time.monotonic() + 120
        while True:
            job: dict[str, object] = self.http.get(url).json()
            costs = self.http.get("/v1/costs/stats").json()["costs"]
            if job["state"] in ("done", "failed", "cancelled") or (not ended and costs >= measured):
                return job
            assert time.monotonic() < deadline, job
            time.sleep(0.02)

    def family(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def kill(self) -> list[psutil.Process]:
        """SIGKILL for the server alone; its processes as they were."""
        family = self.family() if self.process.poll() is None else []
        if family:
            self.process.kill()
        self.process.wait()
        return family


Start = Callable[[], Machine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts machines over one folder; none of their processes outlives the test."""
    started: list[Machine] = []

    def one_more() -> Machine:
        started.append(Machine(tmp_path))
        return started[-1]

    yield one_more
    for machine in started:
        machine.http.close()
        machine.kill()


def test_a_killed_server_loses_nothing_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    first = start()
    url = first.post()
    job = first.until(url, measured=1)
    family = first.kill()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive, "a job's processes must end with their server"

    second = start()
    ended = second.until(url, ended=True)
    assert ended["state"] == "done", ended["reason"]
    if job["state"] == "running":
        assert ended["attempt"] == 2
        known = second.http.get(f"{url}/report").json()["candidates"]["from_cache"]
        assert known >= 1, "what was measured before must not be measured again"
    assert len(list((tmp_path / "data" / "spool").glob("*.lock"))) == 1, (
        "the dead server's spool must go"
    )


def test_a_killed_job_process_is_a_failed_job(start: Start, tmp_path: Path) -> None:
    machine = start()
    url = machine.post()
    machine.until(url, measured=1)
    jobs = [p for p in machine.family() if "service.job_process" in " ".join(p.cmdline())]
    if jobs:
        family = [jobs[0], *jobs[0].children(recursive=True)]
        jobs[0].kill()
        assert machine.until(url, ended=True)["state"] == "failed"
        _, alive = psutil.wait_procs(family, timeout=5)
        assert not alive
    assert machine.http.get("/healthz").status_code == 200
    again = machine.post()
    assert machine.until(again, ended=True)["state"] == "done"


def test_a_server_that_was_stopped_past_its_lease_lets_go(start: Start, tmp_path: Path) -> None:
    first = start()
    url = first.post()
    job = first.until(url, measured=1)
    first.process.send_signal(signal.SIGSTOP)
    second = start()
    ended = second.until(url, ended=True)
    assert ended["state"] == "done", ended["reason"]
    first.process.send_signal(signal.SIGCONT)
    time.sleep(1.0)
    assert second.http.get(url).json() == ended, "the late one must not change what the other has ended"
    if job["state"] == "running":
        assert not [p for p in first.family() if "service.job_process" in " ".join(p.cmdline())]


def test_a_terminated_server_says_goodbye(start: Start, tmp_path: Path) -> None:
    machine = start()
    machine.post()
    family = machine.family()
    machine.process.send_signal(signal.SIGTERM)
    assert machine.process.wait(timeout=20) in (0, -signal.SIGTERM)
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive
    assert not list((tmp_path / "data" / "spool").iterdir())


def test_a_wrong_setting_is_one_line(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "COLLAGE_TLS_KEY": str(tmp_path / "key"),
        "COLLAGE_DATA_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-m", "collage", "serve"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "collage: COLLAGE_TLS_CERTIFICATE and COLLAGE_TLS_KEY need each other\n"

"""Processes that wait for jobs: they make jobs start at once, and none is left over."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from collage.service.jobs.job_child import JobChild
from collage.service.jobs.job_process import Request
from collage.service.jobs.warm_process import WarmProcess, WarmProcesses
from tests.processes import children, has_ended
from tests.service.conftest import StartServer, post_job


def _wait_until_loaded(warm: WarmProcess) -> None:
    """It has its helper, and has nothing to do but to read its request."""
    process = psutil.Process(warm.process.pid)
    deadline, quiet = time.monotonic() + 120, 0
    while quiet < 10:
        assert time.monotonic() < deadline and warm.is_alive
        before = process.cpu_times()
        time.sleep(0.1)
        quiet = quiet + 1 if process.cpu_times() == before and children(process) else 0


def _refusal(warm: WarmProcess, folder: Path, url: str) -> tuple[float, str]:
    """How long it takes to refuse a damaged zip, and why."""
    source, work = folder / "model", folder / "work"
    source.write_bytes(b"PK\x03\x04damaged")
    work.mkdir(exist_ok=True)
    begin = time.monotonic()
    with JobChild(Request(str(source), ["onnxruntime"], {}, url, str(work)), warm) as child:
        while True:
            message = child.next_message(60.0)
            assert message is not None
            if "error" in message:
                return time.monotonic() - begin, message["error"]["kind"]


@pytest.mark.slow
def test_a_loaded_process_refuses_a_damaged_file_at_once(tmp_path: Path, sqlite_url: str) -> None:
    pool = WarmProcesses(tmp_path)
    spent_s = []
    while min(spent_s, default=9.0) > 1.5 and len(spent_s) < 3:  # the machine may be busy for a while
        pool.fill(1)
        _wait_until_loaded(pool._waiting[0])
        took_s, kind = _refusal(pool.take(), tmp_path, sqlite_url)
        assert kind == "model"
        spent_s.append(took_s)
    assert min(spent_s) < 1.5, spent_s
    assert not list(tmp_path.glob("output-*"))


@pytest.mark.slow
def test_a_process_that_was_killed_is_not_given_to_a_job(tmp_path: Path, sqlite_url: str) -> None:
    pool = WarmProcesses(tmp_path)
    pool.fill(1)
    dead = pool._waiting[0]
    os.kill(dead.process.pid, signal.SIGKILL)
    dead.process.wait()
    taken = pool.take()
    assert taken is not dead
    assert _refusal(taken, tmp_path, sqlite_url)[1] == "model"
    pool.close()


def test_closing_ends_all_that_wait(tmp_path: Path) -> None:
    pool = WarmProcesses(tmp_path)
    pool.fill(2)
    pool.fill(2)
    processes = [psutil.Process(warm.process.pid) for warm in pool._waiting]
    assert len(processes) == 2
    pool.close()
    pool.fill(1)
    assert all(map(has_ended, processes)) and not pool._waiting
    assert not list(tmp_path.glob("output-*"))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_a_process_and_its_helper_keep_to_their_cores(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    warm = WarmProcess(tmp_path / "output.txt", [core])
    _wait_until_loaded(warm)
    process = psutil.Process(warm.process.pid)
    assert [each.cpu_affinity() for each in (process, *children(process))] == [[core], [core]]
    warm.discard()


@pytest.mark.slow
def test_a_job_that_follows_at_once_finds_all_loaded(start_server: StartServer) -> None:
    """The second process is ready before the first job comes, and a third loads when that has ended."""
    server = start_server(runners=1)
    warm = server.services.runner._warm
    deadline = time.monotonic() + 120
    while len(warm._waiting) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for process in list(warm._waiting):
        _wait_until_loaded(process)
    jobs = [post_job(server, b"PK\x03\x04damaged").json()["links"]["self"] for _ in range(2)]
    for job in jobs:
        while server.http.get(job).json()["state"] != "failed":
            assert time.monotonic() < deadline + 60
            time.sleep(0.02)
    while 'collage_jobs_started_total{start="warm"} 2.0' not in (
        text := server.http.get("/metrics").text
    ):
        assert time.monotonic() < deadline + 60 and 'start="cold"' not in text, text
        time.sleep(0.05)

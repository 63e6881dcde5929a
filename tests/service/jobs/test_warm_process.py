"""Processes that wait for jobs: they make jobs start at once, and none is left over."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

from collage.service.jobs import job_template
from collage.service.jobs.job_child import JobChild
from collage.service.jobs.job_process import Request
from collage.service.jobs.warm_process import Template, WarmProcess, WarmProcesses
from tests.processes import children, has_ended
from tests.service.conftest import RunningServer, StartServer, post_job


def _pid(warm: WarmProcess) -> int:
    """Its number, once it is forked."""
    deadline = time.monotonic() + 120
    while (pid := warm.pid) is None:
        assert time.monotonic() < deadline and warm.is_alive
        time.sleep(0.02)
    return pid


def _wait_until_loaded(warm: WarmProcess) -> None:
    """It has its helper, and has nothing to do but to read its request."""
    process = psutil.Process(_pid(warm))
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
    pool.close()
    assert not list(tmp_path.glob("output-*"))


@pytest.mark.slow
def test_a_process_that_was_killed_is_not_given_to_a_job(tmp_path: Path, sqlite_url: str) -> None:
    pool = WarmProcesses(tmp_path)
    pool.fill(1)
    dead = pool._waiting[0]
    os.kill(_pid(dead), signal.SIGKILL)
    assert dead.wait(60) == -signal.SIGKILL
    taken = pool.take()
    assert taken is not dead
    assert _refusal(taken, tmp_path, sqlite_url)[1] == "model"
    pool.close()


@pytest.mark.slow
def test_closing_ends_all_that_wait(tmp_path: Path) -> None:
    pool = WarmProcesses(tmp_path)
    pool.fill(2)
    pool.fill(2)
    processes = [psutil.Process(_pid(warm)) for warm in pool._waiting]
    keepers = [process.parent() for process in processes]
    assert len(processes) == 2
    pool.close()
    pool.fill(1)
    assert all(map(has_ended, processes)) and not pool._waiting
    deadline = time.monotonic() + 10
    while not all(keeper is None or has_ended(keeper) for keeper in keepers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not list(tmp_path.glob("output-*"))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_a_process_and_its_helper_keep_to_their_cores(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    template = Template([core])
    warm = WarmProcess(tmp_path / "output.txt", template)
    _wait_until_loaded(warm)
    process = psutil.Process(_pid(warm))
    assert [each.cpu_affinity() for each in (process, *children(process))] == [[core], [core]]
    warm.discard()
    template.close()


@pytest.mark.slow
def test_a_killed_template_is_replaced_and_its_processes_go_on(tmp_path: Path) -> None:
    pool = WarmProcesses(tmp_path)
    pool.fill(1)
    first = pool.take()
    assert _pid(first) and pool._template is not None
    os.kill(pool._template._process.pid, signal.SIGKILL)
    pool._template._process.wait()
    assert first.is_alive
    second, third = (
        pool.take(),
        pool.take(),
    )  # the one that waited may not be forked yet, and then has ended
    assert psutil.Process(_pid(third)).is_running()
    first.discard()
    second.discard()
    third.discard()
    pool.close()
    assert not list(tmp_path.glob("output-*"))


@pytest.mark.slow
def test_nobody_waits_for_a_process_that_is_not_forked_yet(tmp_path: Path) -> None:
    """A runner renews its lease meanwhile; what is closed before it is forked ends by itself."""
    template = Template()
    begin = time.monotonic()
    warm = WarmProcess(tmp_path / "output.txt", template)
    following = WarmProcess(tmp_path / "following.txt", template)
    assert warm.pid is None and warm.is_alive
    warm.terminate()
    warm.kill()
    warm.discard()
    assert time.monotonic() - begin < 1.0, "Python alone takes longer to load all libraries"
    _pid(following)
    deadline = time.monotonic() + 60
    loader = psutil.Process(template._process.pid)
    while len(children(loader)) != 1:  # the keeper of the other one
        assert time.monotonic() < deadline
        time.sleep(0.05)
    following.discard()
    template.close()


@pytest.mark.parametrize("code", [0, 7])
def test_how_a_process_ended_is_told(tmp_path: Path, code: int) -> None:
    """By the one that keeps its number until then."""
    there, here = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keeper = os.fork()
    if keeper == 0:
        here.close()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os._exit(code)
        job_template._keep(pid, there.detach())
    there.close()
    pid = json.loads(here.recv(100))["pid"]
    assert json.loads(here.recv(100)) == {"ended": code}
    assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    here.close()
    assert os.waitpid(keeper, 0)[1] == 0
    assert not psutil.pid_exists(pid)


@pytest.mark.slow
def test_jobs_in_quick_succession_start_at_once(start_server: StartServer) -> None:
    """From the request to the process's own words; no later job waits for libraries to load."""
    server = start_server(runners=1)
    warm = server.services.runner._warm
    deadline = time.monotonic() + 120
    while len(warm._waiting) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for process in list(warm._waiting):
        _wait_until_loaded(process)
    rounds = []
    while len(rounds) < 3 and (
        not rounds or max(rounds[-1]) > 1.5
    ):  # the machine may be busy for a while
        rounds.append([_ended_s(server) for _ in range(6)])
    assert max(rounds[-1]) < 1.5, rounds
    assert 'start="warm"' in server.http.get("/metrics").text


def _ended_s(server: RunningServer) -> float:
    """How long it takes until a job has refused a damaged zip."""
    begin = time.monotonic()
    job = post_job(server, b"PK\x03\x04damaged").json()["links"]["self"]
    while server.http.get(job).json()["state"] != "failed":
        assert time.monotonic() < begin + 60
        time.sleep(0.01)
    return time.monotonic() - begin


@pytest.mark.slow
def test_a_process_has_none_of_the_servers_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("COLLAGE_WEBHOOK_SECRET", "COLLAGE_DATABASE_URL", "COLLAGE_TOKEN")
    others = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS")
    for name in (*settings, *others):
        monkeypatch.setenv(name, "known to the server alone")
    monkeypatch.setenv("COLLAGE_HOST_LABEL", "known to all")
    pool = WarmProcesses(tmp_path)
    pool.fill(1)
    (warm,) = pool._waiting
    for process in (psutil.Process(_pid(warm)), *psutil.Process(_pid(warm)).parents()[:2]):
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        assert b"known to all" in environment and b"known to the server" not in environment
    pool.close()

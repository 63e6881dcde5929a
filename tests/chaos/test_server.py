"""Sudden death and paralysis of processes: jobs end, costs stay, nothing is left running.

In each test the plan is the one that an undisturbed run finds with the same costs.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.chaos.conftest import Start, on
from tests.chaos.machine import LEASE_S, PLAN, Machine, gone
from tests.processes import children

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


def _assert_kept(before: dict[str, tuple[str, float]], machine: Machine) -> None:
    after = machine.costs()
    assert {key: after[key] for key in before} == before, "what was measured must not be measured again"


@on("sqlite", "postgresql")
def test_an_undisturbed_job_finds_the_known_plan(start: Start) -> None:
    machine = start()
    job = machine.post()
    ended = machine.until_ended(job)
    assert ended["state"] == "done", ended["reason"]
    assert machine.plan(job) == PLAN


@on("sqlite", "postgresql")
def test_a_killed_server_loses_nothing_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    first = start()
    job = first.post()
    first.until_measured(job, 2)
    before = first.costs()
    assert gone(first.kill()), "a job's processes must end with their server"

    second = start()
    ended = second.until_ended(job)
    assert (ended["state"], ended["attempt"]) == ("done", 2), ended["reason"]
    _assert_kept(before, second)
    assert second.http.get(f"{job}/report").json()["candidates"]["from_cache"] >= len(before)
    assert second.plan(job) == PLAN
    locks = list((tmp_path / "data" / "spool").glob("*.lock"))
    assert len(locks) == 1, "the dead server's spool must go"


@on("sqlite")
def test_a_killed_job_process_is_a_failed_job_whose_costs_stay(start: Start) -> None:
    machine = start()
    job = machine.post()
    machine.until_measured(job, 2)
    before = machine.costs()
    (process,) = machine.job_processes()
    family = [process, *process.children(recursive=True)]
    process.kill()
    ended = machine.until_ended(job)
    assert ended["state"] == "failed" and "SIGKILL" in ended["reason"]
    assert gone(family)

    again = machine.post()
    assert machine.until_ended(again)["state"] == "done"
    _assert_kept(before, machine)
    assert machine.plan(again) == PLAN


@on("sqlite")
def test_killed_children_are_replaced_and_the_job_goes_on(start: Start) -> None:
    """Whatever a child of the job does at that moment: measuring, or timing whole plans."""
    machine = start()
    job = machine.post()
    machine.until_measured(job, 2)
    before = machine.costs()
    killed: list[psutil.Process] = []
    # One at a time and at most two for what is done: three deaths of one measurement are a reason.
    for _ in range(2):
        (process,) = machine.job_processes()
        (fork_server,) = process.children()
        deadline = time.monotonic() + 30
        while not (found := fork_server.children()):
            assert time.monotonic() < deadline and machine.job(job)["state"] == "running"
            time.sleep(0.01)
        found[0].kill()
        killed.append(found[0])
        time.sleep(0.5)
    ended = machine.until_ended(job)
    assert (ended["state"], ended["attempt"]) == ("done", 1), ended["reason"]
    assert gone(killed)
    _assert_kept(before, machine)
    assert machine.plan(job) == PLAN


@on("postgresql")
def test_a_server_that_was_stopped_past_its_lease_lets_go(start: Start, tmp_path: Path) -> None:
    first = start()
    job = first.post()
    first.until_measured(job, 2)
    before = first.costs()
    family = [p for each in first.job_processes() for p in (each, *each.children(recursive=True))]
    first.process.send_signal(signal.SIGSTOP)
    second = start()
    ended = second.until_ended(job)
    assert (ended["state"], ended["attempt"]) == ("done", 2), ended["reason"]
    assert second.plan(job) == PLAN
    after = second.costs()
    first.process.send_signal(signal.SIGCONT)
    time.sleep(1.0)
    assert second.job(job) == ended, "the late one must not change what the other has ended"
    assert second.costs() == after and {key: after[key] for key in before} == before
    assert gone(family)
    spools = tmp_path / "data" / "spool"
    assert not list(spools.glob("*/job-*")), "no job may have a folder"
    # What it may have is a process that waits for its next job: no child of its helper stays.
    helpers = [helper for each in first.job_processes(waiting=True) for helper in children(each)]
    assert gone([child for helper in helpers for child in children(helper)])


@on("postgresql")
def test_job_process_stopped_past_its_lease_is_replaced(start: Start) -> None:
    machine = start()
    job = machine.post()
    machine.until_measured(job, 2)
    before = machine.costs()
    (process,) = machine.job_processes()
    family = [process, *process.children(recursive=True)]
    process.send_signal(signal.SIGSTOP)
    assert gone(family, within_s=3 * LEASE_S + 5), "a job that stands still must not keep the device"
    ended = machine.until_ended(job)
    assert (ended["state"], ended["attempt"]) == ("done", 2), ended["reason"]
    _assert_kept(before, machine)
    assert machine.plan(job) == PLAN


@on("postgresql")
def test_a_terminated_server_gives_its_job_back_at_once(start: Start, tmp_path: Path) -> None:
    first = start(LEASE_S=60)
    job = first.post()
    first.until_measured(job, 1)
    before = first.costs()
    family = first.family()
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(timeout=20) in (0, -signal.SIGTERM)
    assert gone(family)
    assert not list((tmp_path / "data" / "spool").iterdir())

    second = start()
    ended = second.until_ended(job)
    assert (ended["state"], ended["attempt"]) == ("done", 1), ended["reason"]
    _assert_kept(before, second)

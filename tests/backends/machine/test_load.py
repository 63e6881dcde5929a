"""What other processes take from this one is seen, and waited for."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collage.backends.machine import load
from collage.backends.machine.load import LoadMeter, WaitMeter, cores, wait_for_quiet

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="no such counters")


def _spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.fixture
def busy() -> Iterator[multiprocessing.Process]:
    """Another process that uses the first core."""
    core = min(cores())
    process = multiprocessing.get_context("fork").Process(target=_on_core, args=(core,))
    process.start()
    time.sleep(0.2)
    yield process
    process.kill()
    process.join()


def _on_core(core: int) -> None:
    os.sched_setaffinity(0, {core})
    _spin(60)


@pytest.mark.slow
def test_load_of_another_process_is_seen(busy: multiprocessing.Process) -> None:
    meter = LoadMeter()
    time.sleep(0.5)
    assert meter.others() > 0.5


@pytest.mark.slow
def test_own_work_is_no_load_of_others() -> None:
    """Whatever other tests take at the same time: all that the cores do is never counted twice."""
    meter, begin_s, own_s = LoadMeter(), time.monotonic(), time.process_time()
    _spin(1.0)
    own = (time.process_time() - own_s) / (time.monotonic() - begin_s)
    assert meter.others() <= len(cores()) - own + 0.1


@pytest.mark.slow
def test_process_that_shares_its_core_waits(busy: multiprocessing.Process) -> None:
    before = cores()
    try:
        os.sched_setaffinity(0, {min(before)})
        meter = WaitMeter()
        _spin(0.5)
        assert meter.lap() > 0.2
    finally:
        os.sched_setaffinity(0, before)


def test_waiting_for_quiet_ends_with_patience_or_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([2.0, 2.0, 0.0, 2.0])
    monkeypatch.setattr(load.LoadMeter, "others", lambda self: next(loads))
    monkeypatch.setattr(load, "_LOOK_S", 0.01)
    assert 0.03 <= wait_for_quiet(60.0) < 1.0
    monkeypatch.setattr(load.LoadMeter, "others", lambda self: 2.0)
    assert 0.1 <= wait_for_quiet(0.1) < 1.0
    assert wait_for_quiet(0.0) < 0.01

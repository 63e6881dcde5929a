"""Workers, tuners and schedulers that die while a worker measures."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import collage
from benchmarks.zero_model import TARGETS, best_plan, zero_model
from tests.chaos.machine import gone
from tests.hosts import Site

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Site]:
    """A scheduler without workers."""
    made = Site(tmp_path / "cluster", ["one", "two"])
    try:
        yield made
    finally:
        made.close()


class Tuning:
    """A tuning in a thread of its own."""

    def __init__(self, cluster: Site, folder: Path) -> None:
        self._model = folder / "zero.onnx"
        self._model.write_bytes(zero_model())
        self._database = f"sqlite:///{folder / 'costs.db'}"
        self._cluster = cluster
        self.artifact: Any = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.artifact = collage.tune(
                self._model,
                TARGETS,
                database=self._database,
                scheduler=self._cluster.address,
                certificates=self._cluster.tuner,
                time_limit_s=12.0,
            )
        except Exception as error:
            self.error = error

    def plan(self) -> list[tuple[tuple[str, ...], str]]:
        """What came out, once it has."""
        self._thread.join(120)
        assert not self._thread.is_alive() and self.error is None, self.error
        return [(tuple(p["nodes"]), p["target"]) for p in self.artifact.plan["partitions"]]

    def failure(self) -> str:
        """Why it failed, once it has."""
        self._thread.join(120)
        assert self.error is not None
        return str(self.error)


def _start(cluster: Site, *names: str) -> dict[str, psutil.Popen]:
    started = {name: cluster.work(cluster.host(name), name) for name in names}
    cluster.until(lambda workers: len(workers) == len(names))
    return started


def _busy(workers: dict[str, psutil.Popen]) -> tuple[str, psutil.Process]:
    """The worker that has a child now, and that child."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for name, worker in workers.items():
            for nursery in worker.children():
                for child in nursery.children():
                    return name, child
        time.sleep(0.005)
    raise AssertionError("nothing is measured")


def test_what_a_killed_worker_measured_is_measured_by_another(cluster: Site, tmp_path: Path) -> None:
    workers = _start(cluster, "one", "two")
    tuning = Tuning(cluster, tmp_path)
    name, _ = _busy(workers)
    family = [workers[name], *workers[name].children(recursive=True)]
    workers[name].kill()
    assert gone(family), "a worker's children must end with it"
    assert tuning.plan() == best_plan()


def test_without_any_worker_left_the_job_fails_with_the_reason(cluster: Site, tmp_path: Path) -> None:
    workers = _start(cluster, "one")
    tuning = Tuning(cluster, tmp_path)
    _busy(workers)
    workers["one"].kill()
    assert "the last worker of the kind that measures for this job is gone" in tuning.failure()


def test_a_scheduler_that_comes_back_finds_its_workers_and_tuners(
    cluster: Site, tmp_path: Path
) -> None:
    workers = _start(cluster, "one")
    tuning = Tuning(cluster, tmp_path)
    _busy(workers)
    cluster.scheduler.kill()
    cluster.scheduler.wait()
    cluster.start_scheduler()
    assert tuning.plan() == best_plan()


def test_a_killed_tuner_leaves_no_child_on_the_worker(cluster: Site) -> None:
    workers = _start(cluster, "one")
    program = (
        "import sys, time; from pathlib import Path; from collage.dask_site import DaskSite\n"
        "from partitioner.target import Target\n"
        "site = DaskSite(sys.argv[1], Path(sys.argv[2])); site.check([Target.parse('null')])\n"
        "print('ready', flush=True); site.run(time.sleep, 100.0)\n"
    )
    command = [sys.executable, "-c", program, cluster.address, str(cluster.tuner)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tuner:
        assert tuner.stdout is not None and tuner.stdout.readline() == b"ready\n"
        _, child = _busy(workers)
        tuner.kill()
    assert gone([child], within_s=10)


def test_a_worker_that_is_told_to_stop_gives_its_task_away(cluster: Site, tmp_path: Path) -> None:
    workers = _start(cluster, "one", "two")
    tuning = Tuning(cluster, tmp_path)
    name, _ = _busy(workers)
    workers[name].terminate()
    assert workers[name].wait(20) == 0
    assert tuning.plan() == best_plan()

"""Workers, tuners and schedulers that die while a worker measures."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest
from tornado.iostream import IOStream

import collage
from benchmarks.support.zero_model import TARGETS, best_plan, zero_model
from collage.backends.sandbox.run import ChildLimits
from collage.cluster.connection import ClusterError, find_workers
from collage.cluster.dask_runner import DaskRunner
from collage.cluster.worker import serve_worker
from collage.cluster.worker_files import WorkerFiles
from collage.cluster.worker_pool import WorkerPool
from collage.partitioner.target import Target
from collage.runner import NoWorkerError
from tests.chaos.machine import gone
from tests.hosts import Cluster, Host
from tests.processes import children, has_ended

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


NULL = [Target.parse("null")]
Workers = dict[str, psutil.Popen]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler, and two machines of one kind."""
    made = Cluster(tmp_path_factory.mktemp("cluster"), ["one", "two"])
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def machines(cluster: Cluster) -> dict[str, Host]:
    return {name: cluster.host(name) for name in ("one", "two")}


@pytest.fixture(scope="module")
def running() -> Workers:
    return {}


@pytest.fixture
def workers(cluster: Cluster, machines: dict[str, Host], running: Workers) -> Workers:
    """A worker on each machine, started where the test before has killed it."""
    for name, machine in machines.items():
        if name not in running or running[name].poll() is not None:
            running[name] = cluster.work(machine, name)
    # A dead one's namesake is there until the scheduler has seen its end.
    cluster.until(lambda there: [worker.name for worker in there] == sorted(running))
    return running


class Task:
    """A call on some worker, from a thread of its own."""

    def __init__(self, cluster: Cluster, seconds: float) -> None:
        self._result: Future[None] = Future()
        arguments = (cluster, seconds)
        threading.Thread(target=self._run, args=arguments, daemon=True).start()

    def _run(self, cluster: Cluster, seconds: float) -> None:
        try:
            with DaskRunner(cluster.address, cluster.tuner) as runner:
                runner.check(NULL)
                runner.run(time.sleep, seconds, limits=ChildLimits(timeout_s=100))
            self._result.set_result(None)
        except Exception as error:
            self._result.set_exception(error)

    def result(self) -> None:
        """Wait for its end; raises what it raised."""
        self._result.result(timeout=100)


def _busy(workers: Workers, seconds: float = 0.0) -> tuple[str, psutil.Process]:
    """The worker that has a child for so long, and that child."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for name, worker in workers.items():
            for fork_server in children(worker):
                for child in children(fork_server):
                    time.sleep(seconds)
                    if not has_ended(child):
                        return name, child
        time.sleep(0.005)
    raise AssertionError("nothing is measured")


def test_a_job_is_done_although_its_worker_was_killed(
    cluster: Cluster, workers: Workers, tmp_path: Path
) -> None:
    model = tmp_path / "zero.onnx"
    model.write_bytes(zero_model())
    killed: list[psutil.Process] = []

    def kill() -> None:
        name, _ = _busy(workers)
        killed.extend([workers[name], *workers[name].children(recursive=True)])
        workers[name].kill()

    thread = threading.Thread(target=kill)
    thread.start()
    artifact = collage.tune(
        model,
        TARGETS,
        database=f"sqlite:///{tmp_path / 'costs.db'}",
        scheduler=cluster.address,
        certificates=cluster.tuner,
        time_limit_s=10.0,
    )
    thread.join(60)
    assert killed and gone(killed), "a worker's children must end with it"
    plan = [(tuple(part["nodes"]), part["target"]) for part in artifact.plan["partitions"]]
    assert plan == best_plan()


def test_stopped_worker_gives_its_task_away(cluster: Cluster, workers: Workers) -> None:
    task = Task(cluster, 2.0)
    name, child = _busy(workers, 1.0)
    workers[name].terminate()
    assert gone([child])
    assert workers[name].wait(20) == 0
    task.result()


def test_a_task_of_a_suspended_worker_is_done_by_another(cluster: Cluster, workers: Workers) -> None:
    task = Task(cluster, 2.0)
    name, child = _busy(workers, 1.0)
    workers[name].suspend()
    task.result()
    workers[name].resume()
    assert gone([child], within_s=10)
    cluster.until(lambda there: len(there) == len(workers))


def test_a_scheduler_that_comes_back_finds_workers_and_tuners(
    cluster: Cluster, workers: Workers
) -> None:
    task = Task(cluster, 2.0)
    _, child = _busy(workers, 1.0)
    cluster.scheduler.kill()
    cluster.scheduler.wait()
    assert gone([child])
    cluster.start_scheduler()
    task.result()


class HangingUp:
    """While it is on, whatever this process connects to hangs up before TLS begins."""

    def __init__(self) -> None:
        self.on = False
        self.count = 0
        self._start_tls = IOStream.start_tls

    def start_tls(self, stream: IOStream, *args: Any, **more: Any) -> Any:
        if self.on:
            self.count += 1
            stream.close()
        return self._start_tls(stream, *args, **more)


@pytest.fixture
def hanging_up(monkeypatch: pytest.MonkeyPatch) -> HangingUp:
    made = HangingUp()
    monkeypatch.setattr(
        IOStream, "start_tls", lambda stream, *args, **more: made.start_tls(stream, *args, **more)
    )
    return made


def test_for_a_tuner_a_scheduler_that_hangs_up_is_away(
    cluster: Cluster, workers: Workers, hanging_up: HangingUp
) -> None:
    pool = WorkerPool(cluster.address, cluster.tuner)
    hanging_up.on = True
    cluster.scheduler.kill()
    cluster.scheduler.wait()
    cluster.start_scheduler()
    _until_away(pool)
    with pytest.raises(ClusterError, match=r"cannot be reached .*is `collage scheduler` running"):
        find_workers(cluster.address, cluster.tuner)
    hanging_up.on = False
    cluster.until(lambda there: len(there) == len(workers))
    assert _reached(pool) == sorted(workers)
    pool.close("nothing")
    gc.collect()  # what is left of the broken connection must end without an error


def test_a_worker_tries_again_where_a_scheduler_hangs_up(
    cluster: Cluster, workers: Workers, hanging_up: HangingUp, tmp_path: Path
) -> None:
    cluster.until(lambda there: len(there) == len(workers))
    said = cluster.workers()[0].announced
    files = WorkerFiles(tmp_path, 1000)
    hanging_up.on = True

    async def work() -> None:
        own = cluster.certificates / "one"
        working = asyncio.create_task(
            serve_worker(cluster.address, own, announced=said, name="third", files=files)
        )
        while hanging_up.count < 2:
            await asyncio.sleep(0.05)
            assert not working.done()
        hanging_up.on = False
        await asyncio.to_thread(
            cluster.until, lambda there: "third" in [worker.name for worker in there]
        )
        working.cancel()
        await asyncio.wait([working])

    asyncio.run(work())
    cluster.until(lambda there: len(there) == len(workers))


def _reached(pool: WorkerPool) -> list[str]:
    """The workers that a pool finds, once it reaches its scheduler."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return [worker.name for worker in pool.workers()]
        except ClusterError:
            assert time.monotonic() < deadline, "the pool does not reach its scheduler"
            time.sleep(0.1)


def _until_away(pool: WorkerPool) -> None:
    """Wait until a pool sees that its scheduler is away."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            pool.workers()
        except ClusterError:
            return
        time.sleep(0.05)
    raise AssertionError("the pool still reaches its scheduler")


def test_a_killed_tuner_leaves_no_child_on_the_worker(cluster: Cluster, workers: Workers) -> None:
    program = (
        "import sys, time; from pathlib import Path; from collage.cluster.dask_runner import DaskRunner\n"
        "from collage.partitioner.target import Target\n"
        "runner = DaskRunner(sys.argv[1], Path(sys.argv[2])); runner.check([Target.parse('null')])\n"
        "print('ready', flush=True); runner.run(time.sleep, 100.0)\n"
    )
    command = [sys.executable, "-c", program, cluster.address, str(cluster.tuner)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tuner:
        assert tuner.stdout is not None and tuner.stdout.readline() == b"ready\n"
        _, child = _busy(workers)
        tuner.kill()
    assert gone([child], within_s=10)


def test_without_any_worker_left_the_reason_is_said(cluster: Cluster, workers: Workers) -> None:
    task = Task(cluster, 30.0)
    _, child = _busy(workers, 1.0)
    for worker in workers.values():
        worker.kill()
    assert gone([child])
    with pytest.raises(NoWorkerError, match=r"the last worker of the kind .* is gone"):
        task.result()

"""`collage serve` as a process of its own, and jobs whose costs are stated, for tests that break things."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.support.zero_model import TARGETS, best_plan, zero_model
from tests.processes import children, has_a_job, has_ended, waits_for_a_job

LEASE_S = 2
FINISHED = ("done", "failed", "cancelled")

FORM = {"targets": json.dumps(TARGETS), "options": '{"time_limit_s": 120}'}
PLAN = best_plan()


class Machine:
    """A server on a data folder and a database that outlive it.

    Args:
        folder: for its files, and the log of all machines.
        database_url: of a database whose tables are there.
        settings: more settings, by their names in the environment without `COLLAGE_`.
    """

    def __init__(self, folder: Path, database_url: str, **settings: object) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        given = {
            "PORT": port,
            "DATA_DIR": folder / "data",
            "DATABASE_URL": database_url,
            "LEASE_S": LEASE_S,
            "POLL_S": 0.05,
            # The device's lock must not be shared with what else runs on this machine.
            "RUNTIME_DIR": folder / "run",
            **settings,
        }
        environment = {**os.environ, **{f"COLLAGE_{name}": str(value) for name, value in given.items()}}
        with (folder / "log.txt").open("ab") as log:
            self.process = psutil.Popen(
                [sys.executable, "-m", "collage", "serve"], env=environment, stderr=log, stdout=log
            )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        self._until(lambda: self._answers("/readyz"), "the server does not start")

    def post(self, model: bytes | None = None) -> str:
        """The URL of a new job."""
        files = {"model": ("m.onnx", zero_model() if model is None else model)}
        answer = self.http.post("/v1/jobs", files=files, data=FORM)
        return str(answer.raise_for_status().json()["links"]["self"])

    def job(self, url: str) -> dict[str, Any]:
        """A job as it is now."""
        job: dict[str, Any] = self.http.get(url).raise_for_status().json()
        return job

    def until_measured(self, url: str, costs: int) -> None:
        """Wait until the job has stored that many costs and still runs."""
        self._until(lambda: len(self.costs()) >= costs, "nothing is measured")
        assert self.job(url)["state"] == "running", self.job(url)

    def until_ended(self, url: str) -> dict[str, Any]:
        """The job once it has ended."""
        self._until(lambda: self.job(url)["state"] in FINISHED, "the job does not end")
        return self.job(url)

    def costs(self) -> dict[str, tuple[str, float]]:
        """When and as what each cost was measured, by key."""
        items = self.http.get("/v1/costs", params={"limit": 1000}).raise_for_status().json()["items"]
        return {item["digest"]: (item["created_at"], item["latency_us"]) for item in items}

    def plan(self, url: str) -> list[tuple[tuple[str, ...], str]]:
        """A done job's plan: nodes and target of each partition."""
        plan = self.http.get(f"{url}/plan").raise_for_status().json()
        return [(tuple(part["nodes"]), part["target"]) for part in plan["partitions"]]

    def family(self) -> list[psutil.Process]:
        """The server and every process below it."""
        return [self.process, *children(self.process, recursive=True)]

    def job_processes(self, *, waiting: bool = False) -> list[psutil.Process]:
        """The processes of jobs, not of their children, nor those that wait for a job unless asked for."""
        return [p for p in self.family() if has_a_job(p) or (waiting and waits_for_a_job(p))]

    def kill(self) -> list[psutil.Process]:
        """SIGKILL for the server alone; its processes as they were."""
        family = self.family() if self.process.poll() is None else []
        if family:
            self.process.kill()
        self.process.wait()
        return family

    def close(self) -> None:
        """End it, also when it is suspended or dead already."""
        self.http.close()
        family = self.family() if self.process.poll() is None else []
        self.kill()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _answers(self, path: str) -> bool:
        assert self.process.poll() is None, "the server has ended; see log.txt"
        try:
            return self.http.get(path).is_success
        except httpx.TransportError:
            return False

    def _until(self, holds: Callable[[], bool], otherwise: str, within_s: float = 120.0) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline, otherwise
            time.sleep(0.05)


def gone(processes: list[psutil.Process], within_s: float = 5.0) -> bool:
    """Whether all of them have ended, or end soon."""
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return not [process for process in alive if not has_ended(process)]

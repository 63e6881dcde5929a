"""Other work on this machine's cores, of four kinds.

Terms: a *spinner* is a process that computes for so long and then sleeps for so long. It ends with its parent.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from collage.backends.machine.process_policy import default_threads


@dataclass(frozen=True)
class Disturbance:
    """One kind.

    Args:
        spinners: how many; 0 for one on each core.
        busy_s: how long each computes.
        idle_s: how long it sleeps then.
    """

    text: str
    spinners: int
    busy_s: float
    idle_s: float


KINDS = {
    "none": Disturbance("nothing else runs", 0, 0.0, 0.0),
    "one-core": Disturbance("one core busy for 50 of 100 ms", 1, 0.05, 0.05),
    "all-cores": Disturbance("each core busy for 50 of 200 ms", 0, 0.05, 0.15),
    "bursts": Disturbance("each core busy for 2 of 10 s", 0, 2.0, 8.0),
}


@contextmanager
def disturbed(kind: str) -> Iterator[None]:
    """Other work runs inside the block."""
    chosen = KINDS[kind]
    context = multiprocessing.get_context("spawn")
    count = (chosen.spinners or default_threads()) if chosen.busy_s else 0
    spinners = [
        context.Process(target=spin, args=(chosen.busy_s, chosen.idle_s, os.getpid()), daemon=True)
        for _ in range(count)
    ]
    for spinner in spinners:
        spinner.start()
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.join()


def spin(busy_s: float, idle_s: float, parent: int) -> None:
    """Compute and sleep in turn while the parent lives."""
    while os.getppid() == parent:
        until = time.perf_counter() + busy_s
        while time.perf_counter() < until:
            pass
        time.sleep(idle_s)

"""How far apart the cores are: how fast one core reads what another has just written.

A virtual machine's host moves its cores: at times they share a last-level cache, at times they do not,
and at times they are two threads of one physical core. Each runtime then slows down by another factor
(docs/results/cores.md). *Near* is the nearest quarter of all that was seen; two threads of one core
count as far.

Invariant: only its own threads are pinned.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

# It fits the cache of one core, and takes long enough for the clock.
_BYTES = 384 << 10
_READS = 15
# Times the near distance; chosen between the two states (docs/results/cores.md).
_FAR = 1.3
# The nearest quarter: a rarer state is no state to choose a plan by, nor one to wait for.
_RARE = 4
# Sums of data in the first cache keep a core's units busy: two threads of one physical core slow each
# other down.
_SUMMED, _SUMS, _TURNS = 2048, 600, 3
_SHARED = 1.45
# A machine that idles is moved back sooner than one that works.
_NAP_S = 0.2
_FIRST_MEASURES = 6
# Of fewer rounds a median says little.
_LEAST_ROUNDS = 3


class CoreWatch:
    """Watches the distance of two cores, the first and the last that this process may use.

    Where there is one only, or the system does not tell, they are always near.

    Args:
        seen_us: distances that were measured before; infinite where the two were one physical core.
        patience_s: how long it may wait in all.

    Attributes:
        seen_us: the distances, without those while it waited for near cores: far ones would seem too
            usual.
    """

    def __init__(self, seen_us: Sequence[float] = (), patience_s: float = 3.0) -> None:
        self.seen_us = list(seen_us)
        self._patience_s = patience_s
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._threads = [_pinned(core) for core in (cores[0], cores[-1])] if len(cores) > 1 else []
        self._data = np.ones(_BYTES // 8)
        self._rows = np.broadcast_to(self._data[:_SUMMED], (_SUMS, _SUMMED))

    @property
    def near_us(self) -> float:
        """The largest distance that is near; infinite where nothing was seen, or mostly one physical core."""
        seen = sorted(self.seen_us)
        return _FAR * seen[len(seen) // _RARE] if seen else math.inf

    def measure(self) -> float:
        """The distance in microseconds; infinite where the cores are one, 0 where they are always near."""
        if not self._threads:
            return 0.0
        self.seen_us.append(self._measured_us())
        return self.seen_us[-1]

    def settle(self) -> float:
        """Wait until the cores are near or patience ends; returns their distance.

        Where nothing is known it waits for a second first, to learn what is near.
        """
        us = self.measure()
        while self._threads and len(self.seen_us) < _FIRST_MEASURES:
            self._nap()
            us = self.measure()
        while us > self.near_us and self._patience_s > 0:
            self._nap()
            us = self._measured_us()
        return us

    def are_near(self, distances_us: Sequence[float]) -> list[bool]:
        """Which of these distances are near, by all that was seen."""
        near_us = self.near_us
        return [us <= near_us for us in distances_us]

    def _nap(self) -> None:
        time.sleep(_NAP_S)
        self._patience_s -= _NAP_S

    def _measured_us(self) -> float:
        return math.inf if self._are_one() else self._distance_us()

    def close(self) -> None:
        """End its threads."""
        for thread in self._threads:
            thread.shutdown()

    def _distance_us(self) -> float:
        """Microseconds to read what the other core has just written."""
        writer, reader = self._threads
        times = []
        for value in range(_READS):
            writer.submit(self._data.fill, value).result()
            times.append(reader.submit(self._read_us).result())
        return statistics.median(times)

    def _are_one(self) -> bool:
        """Whether the two are threads of one physical core."""
        one, other = self._threads
        alone, together = [], []
        for _ in range(_TURNS):
            alone.append(max(self._summing_us(one), self._summing_us(other)))
            together.append(self._summing_us(one, other))
        return min(together) > _SHARED * min(alone)

    def _summing_us(self, *threads: ThreadPoolExecutor) -> float:
        """Microseconds until threads have summed at once."""
        begin = time.perf_counter_ns()
        for summed in [thread.submit(self._rows.sum, axis=1) for thread in threads]:
            summed.result()
        return (time.perf_counter_ns() - begin) / 1e3

    def _read_us(self) -> float:
        begin = time.perf_counter_ns()
        self._data.sum()
        return (time.perf_counter_ns() - begin) / 1e3


def counting(near: Sequence[bool]) -> list[bool]:
    """Which rounds count: those with near cores, or all where these are too few."""
    return list(near) if sum(near) >= _LEAST_ROUNDS else [True] * len(near)


def _pinned(core: int) -> ThreadPoolExecutor:
    """A thread that stays on a core."""
    return ThreadPoolExecutor(1, initializer=lambda: os.sched_setaffinity(0, {core}))

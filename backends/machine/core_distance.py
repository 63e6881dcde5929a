"""How far apart the cores are: what one core has just written, how fast can another one read it?

A virtual machine's cores are threads of its host, which moves them: now they share a last-level cache and now they do
not. Then each runtime slows down by another factor, for seconds to minutes (docs/measurement.md). A core that
shares its units with somebody else's work reads slower too. At times the two are the two threads of one physical core:
then each reads fastest of all what the other wrote, and both together do little more than one alone. That counts as far.
Near is what the nearest quarter of the time is: some machines have more states than two, and the nearest for moments only.

Invariant: what is measured pins threads of its own only.
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
# Near, the distance moves by a tenth; far, it is 1.7 times as large.
_FAR = 1.3
# What the nearest quarter of all looks saw is near: a state that is rarer is nothing to choose a plan by, and nothing to wait for.
_RARE = 4
# Sums of what fits the nearest cache keep a core's units busy. At once they take 1.7 to 1.9 times as long on the two threads
# of one physical core, and 1.0 to 1.3 times on two.
_SUMMED, _SUMS, _TURNS = 2048, 600, 3
_SHARED = 1.45
# A machine that idles is moved back sooner than one that works: in one of four naps, and in one of seven busy seconds.
_NAP_S = 0.2
_FIRST_LOOKS = 6
# Of fewer rounds a median says little.
_LEAST_ROUNDS = 3


class CoreWatch:
    """Watches the distance of two cores, the first and the last that this process may use.

    Where it may use one only, or the system does not say which, they are always near.

    Args:
        looks_us: the distances that were seen before, infinite where the two were one physical core.
        patience_s: how long it may nap in all.

    Attributes:
        looks_us: the distances seen, but for those while it waited for near cores: far ones would seem too usual.
    """

    def __init__(self, looks_us: Sequence[float] = (), patience_s: float = 3.0) -> None:
        self.looks_us = list(looks_us)
        self._patience_s = patience_s
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._threads = [_pinned(core) for core in (cores[0], cores[-1])] if len(cores) > 1 else []
        self._data = np.ones(_BYTES // 8)
        self._rows = np.broadcast_to(self._data[:_SUMMED], (_SUMS, _SUMMED))

    @property
    def near_us(self) -> float:
        """Further than this is far; infinite where nothing was seen, or mostly one physical core."""
        seen = sorted(self.looks_us)
        return _FAR * seen[len(seen) // _RARE] if seen else math.inf

    def look(self) -> float:
        """How far apart the cores are, in microseconds; infinite where they are one, 0 where they are always near."""
        if not self._threads:
            return 0.0
        self.looks_us.append(self._looked_us())
        return self.looks_us[-1]

    def settle(self) -> float:
        """Nap until the cores are near, as far as patience goes; how far apart they are then.

        Where nothing was known it naps a second first, to learn what is near.
        """
        us = self.look()
        while self._threads and len(self.looks_us) < _FIRST_LOOKS:
            self._nap()
            us = self.look()
        while us > self.near_us and self._patience_s > 0:
            self._nap()
            us = self._looked_us()
        return us

    def are_near(self, distances_us: Sequence[float]) -> list[bool]:
        """Which of some distances are near, by all that was seen until now."""
        near_us = self.near_us
        return [us <= near_us for us in distances_us]

    def _nap(self) -> None:
        time.sleep(_NAP_S)
        self._patience_s -= _NAP_S

    def _looked_us(self) -> float:
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
        """Microseconds until threads have summed at once; where they take turns on one core, it is after the other."""
        begin = time.perf_counter_ns()
        for summed in [thread.submit(self._rows.sum, axis=1) for thread in threads]:
            summed.result()
        return (time.perf_counter_ns() - begin) / 1e3

    def _read_us(self) -> float:
        begin = time.perf_counter_ns()
        self._data.sum()
        return (time.perf_counter_ns() - begin) / 1e3


def counting(near: Sequence[bool]) -> list[bool]:
    """Which rounds count: those with the cores near, or all where these are too few.

    Args:
        near: whether they were, by round.
    """
    return list(near) if sum(near) >= _LEAST_ROUNDS else [True] * len(near)


def _pinned(core: int) -> ThreadPoolExecutor:
    """A thread that stays on a core."""
    return ThreadPoolExecutor(1, initializer=lambda: os.sched_setaffinity(0, {core}))

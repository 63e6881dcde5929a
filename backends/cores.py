"""How far apart the cores are: what one core has just written, how fast can another one read it?

A virtual machine's cores are threads of its host, which moves them: now they share a last-level cache and now they do
not. Then each runtime slows down by another factor, for seconds to minutes (docs/measurement.md). A core that
shares its units with somebody else's work reads slower too.

Invariant: what is measured pins threads of its own only.
"""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

# It fits the cache of one core, and takes long enough for the clock.
_BYTES = 384 << 10
_READS = 15
# Near, the distance moves by a tenth; far, it is 1.7 times as large.
_FAR = 1.3
# A machine that idles is moved back sooner than one that works: in one of four naps, and in one of seven busy seconds.
_NAP_S = 0.2
_FIRST_NAPS = 5


class CoreWatch:
    """Watches the distance of two cores, the first and the last that this process may use.

    Args:
        nearest_us: the least distance that is known; None where nothing is.
        patience_s: how long it may nap in all.

    Attributes:
        nearest_us: the least distance seen or known; None before the first, and where it cannot be measured.
    """

    def __init__(self, nearest_us: float | None = None, patience_s: float = 3.0) -> None:
        self.nearest_us = nearest_us
        self._patience_s = patience_s
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._threads = [_pinned(core) for core in (cores[0], cores[-1])] if len(cores) > 1 else []
        self._data = np.ones(_BYTES // 8)

    def near(self) -> bool:
        """Whether the cores are as near as they were at the nearest."""
        if not self._threads:
            return True
        us = self._distance_us()
        self.nearest_us = min(us, self.nearest_us or us)
        return us <= _FAR * self.nearest_us

    def settle(self) -> bool:
        """Nap until the cores are near, as far as patience goes; whether they are.

        Where no distance is known yet it naps a second, to see whether there is a smaller one.
        """
        first = self.nearest_us is None
        near = self.near()
        naps = _FIRST_NAPS if first and self._threads else 0
        while (naps > 0 or not near) and self._patience_s > 0:
            time.sleep(_NAP_S)
            naps -= 1
            self._patience_s -= _NAP_S
            known_us = self.nearest_us
            near = self.near()
            if (
                known_us is not None
                and self.nearest_us is not None
                and self.nearest_us * _FAR < known_us
            ):
                break  # they were far apart and came near
        return near

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

    def _read_us(self) -> float:
        begin = time.perf_counter_ns()
        self._data.sum()
        return (time.perf_counter_ns() - begin) / 1e3


def _pinned(core: int) -> ThreadPoolExecutor:
    """A thread that stays on a core."""
    return ThreadPoolExecutor(1, initializer=lambda: os.sched_setaffinity(0, {core}))

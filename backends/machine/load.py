"""How much of the cores other processes take from this one.

Terms: the *load of others* is the mean number of this process's cores that other processes, or the host of a virtual
machine, use. A thread's *wait* is time in which it could run and had no core, or a core without physical time.

Where the system does not tell, both are 0.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

# Others that use less than this share of the cores leave the machine quiet.
QUIET_SHARE = 0.1
_LOOK_S = 0.25
_TICK_S = 0.01


class LoadMeter:
    """The load of others and the waits of this process, from its creation on."""

    def __init__(self) -> None:
        self._begin = (time.perf_counter(), _busy_s(), time.process_time())

    def others(self) -> float:
        """How many cores others used in the mean."""
        now = (time.perf_counter(), _busy_s(), time.process_time())
        wall_s, busy_s, own_s = (b - a for a, b in zip(self._begin, now, strict=True))
        # Busy time comes in ticks, one counter for each core.
        return max(0.0, busy_s - own_s - 2 * _TICK_S) / max(wall_s, 1e-9)


class WaitMeter:
    """The share of time that this process waited for cores, from one `lap` to the next."""

    def __init__(self) -> None:
        self._at = (time.perf_counter(), waited_s())

    def lap(self) -> float:
        """Waiting threads in the mean since the last lap, or since its creation: 1 says that one always waited."""
        before, self._at = self._at, (time.perf_counter(), waited_s())
        return max(0.0, self._at[1] - before[1]) / max(self._at[0] - before[0], 1e-9)


def cores() -> set[int]:
    """The cores that this process may use; empty where the system does not tell."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def wait_for_quiet(patience_s: float) -> float:
    """Wait until others leave the cores alone, or patience ends; how many seconds that took.

    It looks for a quarter of a second even on a quiet machine.
    """
    begin = time.monotonic()
    limit = QUIET_SHARE * max(1, len(cores()))
    while patience_s > 0 and time.monotonic() - begin < patience_s:
        meter = LoadMeter()
        time.sleep(_LOOK_S)
        if meter.others() <= limit:
            break
    return time.monotonic() - begin


def waited_s() -> float:
    """Seconds that threads of this process have waited for a core, and that the host took from its cores."""
    waited_ns = 0
    # A thread may end while it is read.
    with contextlib.suppress(OSError, ValueError, IndexError):
        for task in os.scandir("/proc/self/task"):
            with contextlib.suppress(OSError):
                text = Path(task.path, "schedstat").read_text(encoding="ascii")
                waited_ns += int(text.split()[1])
    return waited_ns / 1e9 + sum(_ticks(8)) * _TICK_S


def _busy_s() -> float:
    """Seconds of all use of this process's cores, stolen time included."""
    return sum(_ticks(1, 2, 3, 6, 7, 8)) / os.sysconf("SC_CLK_TCK")


def _ticks(*fields: int) -> list[int]:
    """Fields of `/proc/stat` for each of this process's cores; see proc(5)."""
    names = {f"cpu{number}" for number in cores()}
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
            words = line.split()
            if words and words[0] in names:
                found.append(sum(int(words[field]) for field in fields))
    return found

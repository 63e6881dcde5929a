"""How runtimes share one process.

A plan calls several runtimes in turn from one thread, and each brings its own threads. The policy, kept
here and in the backends (docs/results/coexistence.md):

* all have one thread count: the cores that this process may use (`default_threads`);
* workers may spin while their own runtime computes, never after: the next runtime needs the cores;
* no runtime pins threads: two runtimes that pin to one core halve each other;
* the caller's affinity is put back after a runtime starts, or later runtimes size themselves by it
  (`caller_kept`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

# For native libraries that read the environment when they are loaded.
ENVIRONMENT: Mapping[str, str] = {
    # Workers of OpenMP libraries (ncnn, torch) spin shortly for the next layer, then leave the cores to
    # the next runtime (docs/results/coexistence.md).
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "1000",
    "KMP_BLOCKTIME": "0",
    "ORT_DISABLE_TELEMETRY": "1",
}

CHILD_ENVIRONMENT: Mapping[str, str] = {
    **ENVIRONMENT,
    "LANG": "C.UTF-8",
    # numpy only prepares data there.
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_CGROUP = Path("/sys/fs/cgroup")


def apply_environment() -> None:
    """Set the policy's variables in this process, where the user has not set them.

    To be called before the first runtime is loaded: libraries look only once.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def caller_kept() -> Iterator[None]:
    """Put this thread's affinity back after a runtime was created or called."""
    if not hasattr(os, "sched_getaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        if os.sched_getaffinity(0) != before:
            os.sched_setaffinity(0, before)


def cores_given() -> int:
    """How many cores this process may run on: its affinity, and its container's quota."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this platform
        count = os.cpu_count() or 1
    quota = _quota()
    return max(1, min(count, int(quota))) if quota else count


def default_threads() -> int:
    """Threads that one call may use when the user has not said."""
    return cores_given()


def memory_given() -> int:
    """Memory of the machine, or of the container where that is less, in bytes."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            found.append(int((_CGROUP / name).read_text(encoding="utf-8")))
        except (OSError, ValueError):  # absent, or "max"
            continue
    return min(found)


def _quota() -> float | None:
    """CPU quota of the control group in cores, or None without one."""
    try:
        limit, period = (_CGROUP / "cpu.max").read_text(encoding="utf-8").split()
        return None if limit == "max" else max(1.0, float(limit) / float(period))
    except (OSError, ValueError):
        pass
    base = _CGROUP / "cpu"
    try:
        limit_us = float((base / "cpu.cfs_quota_us").read_text(encoding="utf-8"))
        period_us = float((base / "cpu.cfs_period_us").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return None if limit_us <= 0 else max(1.0, limit_us / period_us)

"""The one policy under which runtimes live together in one process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# For native libraries that read the environment when they are loaded.
CHILD_ENVIRONMENT: Mapping[str, str] = {
    "LANG": "C.UTF-8",
    # libgomp's workers (ncnn) sleep after a parallel region instead of burning the cores that the
    # next runtime needs.
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
    # numpy only prepares data here: its own worker threads would only stand in the way.
    "OPENBLAS_NUM_THREADS": "1",
    # Nobody's machine calls home while it measures.
    "ORT_DISABLE_TELEMETRY": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


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
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found.append(int(Path(name).read_text()))
        except (OSError, ValueError):  # absent, or "max"
            continue
    return min(found)


def _quota() -> float | None:
    """CPU quota of the control group in cores, or None without one."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else max(1.0, float(limit) / float(period))
    except (OSError, ValueError):
        pass
    base = Path("/sys/fs/cgroup/cpu")
    try:
        limit_us = float((base / "cpu.cfs_quota_us").read_text())
        period_us = float((base / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return None if limit_us <= 0 else max(1.0, limit_us / period_us)

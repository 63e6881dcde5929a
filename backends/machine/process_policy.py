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
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from collage.partitioner.errors import BadInputError

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
CHILD_MEMORY = "COLLAGE_CHILD_MEMORY_BYTES"
# Names of a control group's files in version 1, and in version 2.
_LIMIT = ("memory.limit_in_bytes", "memory.max")
_USED = ("memory.usage_in_bytes", "memory.current")
_FILES = ("total_inactive_file", "inactive_file")
_CGROUP = Path("/sys/fs/cgroup")


def apply_environment() -> None:
    """Set the policy's variables in this process, where the user has not set them.

    To be called before the first runtime is loaded: libraries look only once.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def go_before_server() -> None:
    """Let the kernel end this process before its parent when memory runs out, and after its children."""
    with contextlib.suppress(OSError):  # not on this platform
        Path("/proc/self/oom_score_adj").write_text("500", encoding="utf-8")


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
    """Memory of the machine, or of the container where that is less, in bytes; part of cost keys."""
    found = [_machine_memory()]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            found.append(int((_CGROUP / name).read_text(encoding="utf-8")))
        except (OSError, ValueError):  # absent, or "max"
            continue
    return min(found)


def memory_allowed() -> int:
    """Memory that this process may use: as given, or less where its control group says so, in bytes."""
    return min([memory_given(), *(limit for limit, _ in _group_memory())])


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def child_memory() -> int:
    """Memory that one sandboxed child may hold: `COLLAGE_CHILD_MEMORY_BYTES`, or three quarters.

    Raises:
        BadInputError: the variable is no positive number.
    """
    text = os.environ.get(CHILD_MEMORY)
    if text is None:
        return memory_allowed() * 3 // 4
    if not text.isdigit() or int(text) == 0:
        raise BadInputError(f"{CHILD_MEMORY} is {text!r}; give a number of bytes, such as 8000000000")
    return int(text)


def memory_left() -> int:
    """Memory that could still be taken, of the machine or the control group, in bytes."""
    left = [limit - used for limit, used in _group_memory()]
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                left.append(int(line.split()[1]) << 10)
    except (OSError, ValueError, IndexError):  # not on this platform
        pass
    return min(left, default=sys.maxsize)


def _group_memory() -> Iterator[tuple[int, int]]:
    """Limit and use of this process's control group and of those around it, where they have a limit."""
    for folder in _groups("memory"):
        v2 = (folder / "memory.max").exists()
        try:
            limit = int((folder / _LIMIT[v2]).read_text(encoding="ascii"))
            if limit >= _machine_memory():
                continue
            used = int((folder / _USED[v2]).read_text(encoding="ascii"))
        except (OSError, ValueError):  # absent, or "max"
            continue
        # Pages of files that were not used lately can be had back.
        yield limit, used - _statistic(folder / "memory.stat", _FILES[v2])


@lru_cache(maxsize=2)
def _groups(controller: str) -> tuple[Path, ...]:
    """Folders of the control groups whose limit on `memory` or `cpu` this process is under, inner ones first."""
    found: list[Path] = []
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        own = (_CGROUP / controller if controllers else _CGROUP) / path.lstrip("/")
        found += [own, *own.parents]
    # In a container the path may be the host's, and the root of the tree the container's own group.
    roots = (_CGROUP, _CGROUP / controller)
    inside = [each for each in found if each in roots or any(root in each.parents for root in roots)]
    return tuple(each for each in dict.fromkeys([*inside, *roots]) if each.is_dir())


def _statistic(file: Path, name: str) -> int:
    try:
        for line in file.read_text(encoding="ascii").splitlines():
            if line.startswith(name + " "):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0


def _quota() -> float | None:
    """CPU quota in cores of this process's control group and of those around it, or None without one."""
    quotas = [quota for folder in _groups("cpu") if (quota := _quota_of(folder)) is not None]
    return max(1.0, min(quotas)) if quotas else None


def _quota_of(folder: Path) -> float | None:
    """The quota of one control group; in version 1 a file of its own has the period."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            texts = [(folder / name).read_text(encoding="utf-8") for name in names]
            quota_us, period_us = map(float, " ".join(texts).split())
        except (OSError, ValueError):  # absent, or "max"
            continue
        return quota_us / period_us if quota_us > 0 else None
    return None

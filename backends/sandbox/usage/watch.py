"""How much memory and disk a child uses, with all that it started: looked at while it runs.

A limit of the kernel on address space counts each process alone, and counts what is reserved and never
used. So the owner looks several times a second, and kills a child whose processes hold more memory than
they may together, or that takes the last of the machine's or the container's memory. A child may also use
so much of the disk, in its own folder and in those that it was given.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from collage.backends.machine import process_policy

LOOK_S = 0.1
# While it holds little: each look takes a third of a millisecond from what is measured.
_CALM_S = 0.3
_CALM_SHARE = 4
_DISK_EACH_S = 1.0
_RESERVE = 20  # this part of all memory is for the server and the system
_LEAST_FILES = 100_000
# Pages of files can be had back at any time.
_RESIDENT, _SHARE = ("RssAnon:", "RssShmem:"), ("Pss_Anon:", "Pss_Shmem:")

Resource = Literal["memory", "disk"]


@dataclass(frozen=True)
class Excess:
    """What a child has too much of, in words."""

    resource: Resource
    reason: str


class Watch:
    """Looks at one child.

    Args:
        pid: its first process.
        folders: where it may write; the first is its own.
        memory_bytes: what all its processes may hold.
        disk_bytes: what it may take of the disk; None for half of what is free now.
    """

    def __init__(
        self, pid: int, folders: Sequence[str], memory_bytes: int, disk_bytes: int | None
    ) -> None:
        self._pid = pid
        self._folders = folders
        self._memory_bytes = memory_bytes
        self._memory_at = 0.0
        self._began = time.time()
        self._disk_at = time.monotonic() + _DISK_EACH_S
        free_bytes, self._free_files = _free(folders[0])
        self._free_bytes = free_bytes
        self._disk_bytes = free_bytes // 2 if disk_bytes is None else disk_bytes

    def look(self) -> Excess | None:
        """What there is too much of now."""
        now = time.monotonic()
        excess = None
        if now >= self._memory_at:
            excess = self._memory(now)
        if excess is None and now >= self._disk_at:
            self._disk_at = now + _DISK_EACH_S
            excess = self._disk()
        return excess

    def _memory(self, now: float) -> Excess | None:
        processes = self._processes()
        held = sum(resident_bytes(pid) for pid in processes)
        self._memory_at = now + (_CALM_S if held < self._memory_bytes // _CALM_SHARE else LOOK_S)
        if held > self._memory_bytes:
            # Forked processes share pages, which takes longer to find out.
            held = sum(share_bytes(pid) for pid in processes)
        if held > self._memory_bytes:
            return Excess("memory", over_memory(held, self._memory_bytes))
        given = process_policy.memory_allowed()
        if held > given // _RESERVE and process_policy.memory_left() < given // _RESERVE:
            reason = f"the machine had no more memory while it held {_gib(held)}"
            return Excess("memory", f"{reason}: run less beside it, or a smaller model")
        return None

    def _disk(self) -> Excess | None:
        free_bytes, free_files = _free(self._folders[0])
        many_files = max(_LEAST_FILES, self._free_files // 2)
        taken = self._free_bytes - free_bytes
        if taken <= self._disk_bytes and self._free_files - free_files <= many_files:
            return None
        used_bytes, used_files = self._written()
        if used_bytes > self._disk_bytes:
            reason = (
                f"it wrote {_gib(used_bytes)} to the disk, and its limit is {_gib(self._disk_bytes)}"
            )
            return Excess("disk", f"{reason} (half of what was free): free some of the disk")
        if used_files > many_files:
            return Excess("disk", f"it made {used_files} files, and its limit is {many_files}")
        # Others filled the disk: begin anew.
        self._free_bytes, self._free_files = free_bytes + used_bytes, free_files + used_files
        return None

    def _written(self) -> tuple[int, int]:
        """Bytes and number of the files that were changed since the child began."""
        found: dict[tuple[int, int], int] = {}
        for entry in self._files():
            with contextlib.suppress(OSError):
                facts = entry.stat()
                if facts.st_ctime >= self._began - 1:
                    found[facts.st_dev, facts.st_ino] = facts.st_blocks * 512
        return sum(found.values()), len(found)

    def _files(self) -> Iterator[Path]:
        for folder in self._folders:
            for base, _, names in os.walk(folder):
                yield from (Path(base, name) for name in names)
        # A file that is open still takes its space when it has no name any more.
        for pid in self._processes():
            with contextlib.suppress(OSError):
                yield from Path(f"/proc/{pid}/fd").iterdir()

    def _processes(self) -> list[int]:
        found = [self._pid]
        for pid in found:  # grows meanwhile
            found += children_of(pid)
        return found


def over_memory(held_bytes: int | None, limit_bytes: int) -> str:
    """Why a child with too much memory was ended; what it held is not known where the kernel did that."""
    held = _gib(held_bytes) + " of memory" if held_bytes is not None else "all memory that it may"
    return (
        f"it held {held}, and its limit is {_gib(limit_bytes)} ({process_policy.CHILD_MEMORY} sets it)"
    )


def children_of(pid: int) -> list[int]:
    """The processes that a process has started, or was given."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, ValueError):
                found += map(int, (thread / "children").read_text(encoding="ascii").split())
    return found


def resident_bytes(pid: int) -> int:
    """Memory of a process that nobody can have back while it lives."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return _kib(Path(f"/proc/{pid}/status"), _RESIDENT) << 10
    return 0


def share_bytes(pid: int) -> int:
    """As `resident_bytes`, but of what it shares with others its share alone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return _kib(Path(f"/proc/{pid}/smaps_rollup"), _SHARE) << 10
    return resident_bytes(pid)


def _kib(file: Path, names: tuple[str, ...]) -> int:
    lines = file.read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(names))


def _free(folder: str) -> tuple[int, int]:
    try:
        found = os.statvfs(folder)
    except OSError:  # it is gone: the child has ended
        return 0, 0
    return found.f_bavail * found.f_frsize, found.f_favail


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.3g} GiB"

"""A control group (cgroup v2) of its own for each child, where this process may make groups.

The kernel then counts all memory of a child together, and ends everything in the group at once. Groups are
made where the system handed a part of its tree to this process: in its own group or the one around it.
Limits need the controllers `memory` and `pids` there, which the kernel gives to groups without processes of
their own. So a unit of systemd needs `Delegate=yes` and `DelegateSubgroup=server`.

Only the standard library is imported, since the fork server uses this.

Source: Linux, Documentation/admin-guide/cgroup-v2.rst; systemd, "Control Group APIs and Delegation".
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

_ENTER, _CONTROLLERS, _KILL = "cgroup.procs", "cgroup.subtree_control", "cgroup.kill"
_SWAP = "memory.swap.max"
# systemd marks with these what it hands over; root may write everywhere.
_MARKS = ("user.delegate", "trusted.delegate")
_NAME = re.compile(r"collage-(\d+)-\d+\Z")
_REMOVE_TRIES, _REMOVE_EACH_S = 50, 0.01
_OWN_PROCESSES = 1  # the child's first process


@dataclass(frozen=True)
class Groups:
    """Where groups of children are made.

    Args:
        folder: of the group around them.
        memory: they can have a limit on memory.
        processes: they can have a limit on processes and threads.
    """

    folder: Path
    memory: bool = False
    processes: bool = False
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def make(self, memory_bytes: int, processes: int) -> ControlGroup:
        """A new group with limits, as far as these can be had.

        Raises:
            OSError: the kernel refuses.
        """
        folder = self.folder / f"collage-{os.getpid()}-{next(self._numbers)}"
        folder.mkdir()
        group = ControlGroup(folder)
        try:
            for name, value in self.limits(memory_bytes, processes).items():
                if name != _SWAP or (folder / name).exists():  # a kernel may have no swap
                    _write(folder / name, value)
        except OSError:
            group.remove()
            raise
        return group

    def limits(self, memory_bytes: int, processes: int) -> dict[str, str]:
        """What a new group's files are to say."""
        found = {}
        if self.memory:
            # All of it ends at the limit, not the largest process alone.
            found = {"memory.max": str(memory_bytes), _SWAP: "0", "memory.oom.group": "1"}
        if self.processes:
            found["pids.max"] = str(processes + _OWN_PROCESSES)
        return found


@dataclass(frozen=True)
class ControlGroup:
    """The group of one child."""

    folder: Path

    def open(self) -> int:
        """A descriptor; whoever writes `0` to it joins, for good with all that it starts."""
        return os.open(self.folder / _ENTER, os.O_WRONLY | os.O_CLOEXEC)

    def kill(self) -> None:
        """End all that is inside."""
        with contextlib.suppress(OSError):  # it is removed
            _write(self.folder / _KILL, "1")

    def memory_kills(self) -> int:
        """How many processes ended because the group held too much memory."""
        with contextlib.suppress(OSError, ValueError):
            for line in (self.folder / "memory.events").read_text(encoding="ascii").splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return 0

    def remove(self) -> None:
        """End all that is inside, and the group."""
        self.kill()
        for _ in range(_REMOVE_TRIES):
            try:
                self.folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:  # what was killed takes a moment to end
                time.sleep(_REMOVE_EACH_S)
            else:
                return


def find_groups(ends_only: bool) -> Groups | None:
    """Where children can have groups, found by making one; None where they cannot.

    Args:
        ends_only: take also groups that can have no limits, and only end all that is inside. To join one takes
            milliseconds, and a namespace of processes ends as surely.
    """
    for folder in _given():
        for controller in ("memory", "pids"):
            with contextlib.suppress(OSError):
                _write(folder / _CONTROLLERS, f"+{controller}")
        groups = Groups(folder)
        try:
            _remove_old(folder)
            group = groups.make(0, 0)
        except OSError:
            continue
        try:
            found = replace(
                groups,
                memory=(group.folder / "memory.max").exists(),
                processes=(group.folder / "pids.max").exists(),
            )
            is_enough = ends_only or found.memory or found.processes
            if is_enough and (group.folder / _KILL).exists() and _can_be_joined(group):  # Linux 5.14
                return found
        finally:
            group.remove()
    return None


def _given() -> Iterator[Path]:
    """Groups in which this process may make others: the one around its own, then its own."""
    for top, own in _own_groups():
        if own != top and _is_given(own.parent):
            yield own.parent
        if own == top or _is_given(own):
            yield own


def _own_groups() -> Iterator[tuple[Path, Path]]:
    """Where the tree is mounted, and there the group of this process."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not on this platform
        return
    own = next((line[3:] for line in lines if line.startswith("0::")), None)
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        if own is None or not after.startswith("cgroup2 "):
            continue
        root, top = before.split()[3:5]
        inside = os.path.relpath(own, root)
        if inside == "." or not inside.startswith(".."):
            yield Path(top), Path(top) / inside


def _is_given(folder: Path) -> bool:
    """Whether the system handed a group to this process."""
    if os.geteuid() != 0:
        return os.access(folder, os.W_OK) and os.access(folder / _ENTER, os.W_OK)
    for mark in _MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, mark) == b"1":
                return True
    return False


def _can_be_joined(group: ControlGroup) -> bool:
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.write(group.open(), b"0")
            os._exit(0)
        os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def _remove_old(folder: Path) -> None:
    """Remove what fork servers left behind that were killed."""
    for entry in folder.glob("collage-*"):
        maker = _NAME.match(entry.name)
        if maker is not None and not Path(f"/proc/{maker[1]}").exists():
            ControlGroup(entry).remove()


def _write(file: Path, text: str) -> None:
    # Opened without the flags of `write_text`, which this file system has no files to make for.
    number = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(number, text.encode())
    finally:
        os.close(number)

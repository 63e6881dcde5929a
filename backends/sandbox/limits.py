"""The limits of a sandboxed child, and how it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from collage.partitioner.errors import CollageError

FailureKind = Literal["crash", "hang", "out_of_memory", "out_of_disk", "error", "killed"]


@dataclass(frozen=True)
class ChildLimits:
    """Limits of a child."""

    timeout_s: float = 300.0  # it is killed after this time, with all its descendants
    # it is killed when it sends no message for this time; None for `timeout_s`
    silence_s: float | None = None
    # memory that it and all that it starts may hold; None for `process_policy.child_memory`
    memory_bytes: int | None = None
    # address space of each of its processes; None for as much as memory, but 4 GiB at least, and 0 for
    # no limit (GPU drivers reserve far more than they use)
    address_bytes: int | None = None
    # what it may take of the disk; None for half of what is free when it starts
    disk_bytes: int | None = None
    # processor time of the child over all threads; None for `timeout_s` on every core
    cpu_s: float | None = None
    open_files: int = 1024  # how many files may be open
    file_bytes: int = 16 << 30  # the largest file that it may write
    # how many processes and threads its user may have beyond those of now (the kernel does not count
    # those of root)
    processes: int = 1024
    # files that it may read, with all that lies beside them, besides what its arguments name
    readable: tuple[Path, ...] = ()
    # what it may write besides its own folder and what its arguments name (`landlock.granted`)
    writable: tuple[Path, ...] = ()
    gpus: bool = False  # it may use the devices of GPUs
    # user and group number to run as, where the owner is root; None for one of its own (`user`), or
    # the owner's where that cannot be
    user: int | None = None
    answer_bytes: int = 1 << 31  # the largest message or result that it may send
    # more environment variables, over those of the policy
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Protections:
    """What holds for the children of a fork server on this machine."""

    network: bool  # they have none
    own_users: bool  # each is a user of its own; else the owner's
    as_root: bool  # the owner is root
    own_view: bool  # each has a root folder and a namespace of processes of its own
    no_capabilities: bool  # they keep none; else root's pass by permission bits of files
    files: bool  # Landlock: they open the files that they were given and installed software
    calls: bool  # seccomp: they make no Unix sockets, trace nobody, mount nothing
    group: bool  # each ends as a control group, with all that it started
    group_memory: bool  # that has a limit on memory; else the owner watches it
    group_processes: bool  # that has a limit on processes

    def holding(self) -> str:
        """What holds, in one line."""
        held = {
            "no network": self.network,
            "a user of its own": self.own_users,
            "no capabilities": self.no_capabilities,
            "own root folder and processes": self.own_view,
            "given files only (Landlock)": self.files,
            "few system calls (seccomp)": self.calls,
            "a control group that ends as one": self.group,
            "a limit of the kernel on processes": self.group_processes,
            "a limit of the kernel on memory": self.group_memory,
            "memory that is watched": not self.group_memory,
        }
        return ", ".join(text for text, holds in held.items() if holds)

    def missing(self) -> str | None:
        """What does not hold and what would help, in one line, or None."""
        lacks = {
            "no way to cut off the network": self.network,
            "they are root like this process: start it as another user": self.own_users
            or not self.as_root,
            "they pass by permission bits of files: start it as another user": self.no_capabilities,
            "no namespaces for files and processes": self.own_view,
            "no Landlock (Linux 5.13 or newer)": self.files,
            "no seccomp filter": self.calls,
        }
        return "; ".join(text for text, holds in lacks.items() if not holds) or None


class ChildFailed(CollageError):  # noqa: N818  (it names what happened to the child)
    """A child ended without a result.

    Args:
        kind: `crash` (a signal, or an exit without a result), `hang` (the time was up),
            `out_of_memory`, `out_of_disk`, `error` (the function raised), or `killed` (from outside: says nothing
            about the task, so try again).
        reason: one line for people: the signal or exception, and the last words on stderr.
        error_type: name of the exception's class for `error` and `out_of_memory`, else empty.
        detail: the child's traceback or the end of its stderr.
    """

    def __init__(self, kind: FailureKind, reason: str, error_type: str = "", detail: str = "") -> None:
        super().__init__(f"{kind.replace('_', ' ')}: {reason}")
        self.kind = kind
        self.reason = reason
        self.error_type = error_type
        self.detail = detail

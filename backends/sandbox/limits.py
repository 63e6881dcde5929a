"""The limits of a sandboxed child, and how it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from collage.partitioner.errors import CollageError

FailureKind = Literal["crash", "hang", "out_of_memory", "error", "killed"]


@dataclass(frozen=True)
class ChildLimits:
    """Limits of a child."""

    timeout_s: float = 300.0  # it is killed after this time, with all its descendants
    # it is killed when it sends no message for this time; None for `timeout_s`
    silence_s: float | None = None
    # address space; None for the memory of this machine or container, 0 for no limit (GPU drivers
    # reserve far more than they use)
    memory_bytes: int | None = None
    # processor time of the child over all threads; None for `timeout_s` on every core
    cpu_s: float | None = None
    open_files: int = 1024  # how many files may be open
    file_bytes: int = 16 << 30  # the largest file that it may write
    # how many processes and threads its user may have beyond those of now (the kernel does not count
    # those of root)
    processes: int = 1024
    # only files that the task's arguments name (`landlock.granted`), its own folder and installed
    # software can be opened, where the kernel can enforce that
    confine_files: bool = True
    writable: tuple[Path, ...] = ()  # more files and folders that it may write
    # user and group number to run as, where the owner is root; None for one of its own (`user`), or
    # the owner's where that cannot be
    user: int | None = None
    # more environment variables, over those of the policy
    environment: Mapping[str, str] = field(default_factory=dict)


class ChildFailed(CollageError):  # noqa: N818  (it names what happened to the child)
    """A child ended without a result.

    Args:
        kind: `crash` (a signal, or an exit without a result), `hang` (the time was up),
            `out_of_memory`, `error` (the function raised), or `killed` (from outside: says nothing
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

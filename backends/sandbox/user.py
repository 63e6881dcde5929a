"""Who a sandboxed child is: where the owner is root, a user of its own, that nobody else is.

Under a number of its own a child can neither signal nor look into processes of others, and the kernel
counts its processes, so a fork bomb ends at RLIMIT_NPROC. One capability stays, to pass by permission
bits (`CAP_DAC_OVERRIDE`): the files that a child was given lie in folders of the owner, and which those
are is Landlock's to enforce (`sandbox_files`). A program that the child starts keeps it too.

An owner who is a plain user can change to nobody, and neither can root in a container without
`CAP_SETUID` or with a single mapped user: children then run as the owner, without its capabilities.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys

# Numbers that no distribution gives to anybody, inside the 65,536 that containers have.
_FIRST_USER, _USERS = 60600, 550
_PR_SET_KEEPCAPS = 8
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS, _NO_SETUID_FIXUP = 28, 1 << 2
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAP_DAC_OVERRIDE = 1
_CAPABILITY_VERSION = 0x20080522


def user_for(number: int) -> int:
    """The user and group of the fork_server's child of this number."""
    return _FIRST_USER + number % _USERS


def can_change_user() -> bool:
    """True when this process may become a child's user; found out by a copy of it that does."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            _change(_FIRST_USER)
            os._exit(0)
        os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def give_up_privileges(user: int | None) -> None:
    """Become a user, or stay, and lose every capability but the one for files; for good.

    Raises:
        OSError: this process may not become that user.
    """
    was_root = os.geteuid() == 0
    for capability in range(64):
        if capability != _CAP_DAC_OVERRIDE:
            prctl(_PR_CAPBSET_DROP, capability)
    if user is not None:
        prctl(_PR_SET_KEEPCAPS, 1)
        # access(2), which MNN's converter asks first, else leaves out what a plain user may keep.
        prctl(_PR_SET_SECUREBITS, _NO_SETUID_FIXUP)
        _change(user)
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "capset"):
        return
    kept = 1 << _CAP_DAC_OVERRIDE if was_root else 0
    header = struct.pack("<Ii", _CAPABILITY_VERSION, 0)
    libc.capset(header, struct.pack("<6I", kept, kept, kept, 0, 0, 0))
    if kept:
        prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE)


def prctl(option: int, value: int, more: int = 0) -> None:
    """Set something of this process, where the kernel knows it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(more), 0, 0)


def _change(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)

"""The user of a sandboxed child: where the owner is root, a user that no other process has.

Such a child can neither signal nor inspect other processes, and the kernel counts its processes, so a
fork bomb ends at RLIMIT_NPROC. It keeps one capability, to pass by permission bits
(`CAP_DAC_OVERRIDE`): its files lie in folders of the owner, and Landlock says which (`landlock`). A
program that the child starts keeps it too.

Where the owner is not root, children run as the owner, without its capabilities. So they do in a
container without `CAP_SETUID` or with a single mapped user.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys

# Numbers that no distribution uses, inside the 65,536 that containers have.
_FIRST_USER, _USERS = 60600, 550
_PR_SET_KEEPCAPS = 8
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS, _NO_SETUID_FIXUP = 28, 1 << 2
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAP_DAC_OVERRIDE = 1
_CAPABILITY_VERSION = 0x20080522


def user_for(number: int) -> int:
    """User and group number of the fork server's child of this number."""
    return _FIRST_USER + number % _USERS


def can_change_user() -> bool:
    """True when this process may change to a child's user; a forked copy tries."""
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
    """Change to a user, if one is given, and drop every capability but the one for files, for good.

    Raises:
        OSError: this process may not become that user.
    """
    was_root = os.geteuid() == 0
    for capability in range(64):
        if capability != _CAP_DAC_OVERRIDE:
            prctl(_PR_CAPBSET_DROP, capability)
    if user is not None:
        prctl(_PR_SET_KEEPCAPS, 1)
        # Else access(2), which MNN's converter calls first, ignores the kept capability.
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
    """Set an option of this process, where the kernel has prctl."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(more), 0, 0)


def _change(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)

"""Calls of the Linux kernel that Python's standard library lacks: prctl, namespaces, mounts.

Each raises OSError when the kernel refuses, and when this is not Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import sys
from functools import lru_cache
from pathlib import Path

NEW_MOUNTS, NEW_USERS, NEW_PIDS, NEW_NETWORK = 0x00020000, 0x10000000, 0x20000000, 0x40000000

READ_ONLY, NO_SETUID, NO_DEVICES, NO_EXECUTION = 1, 2, 4, 8  # alike for mount and mount_setattr
PRIVATE, RECURSIVE = 1 << 18, 1 << 14
DETACH = 2

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_TREE_CLONE, _TREE_CLOEXEC = 1, os.O_CLOEXEC if hasattr(os, "O_CLOEXEC") else 0
_FROM_EMPTY_PATH = 4
_IDMAP = 0x00100000


def prctl(option: int, value: int, more: int = 0) -> None:
    """Set an option of this process, where the kernel has prctl."""
    libc = _libc()
    if hasattr(libc, "prctl"):
        libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(more), 0, 0)


def unshare(flags: int) -> None:
    """Leave the namespaces named by the flags for new ones; that of processes is for later children."""
    _checked(_function("unshare")(ctypes.c_int(flags)))


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount a file system, or change how one is mounted."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    _checked(_function("mount")(*encoded, ctypes.c_ulong(flags), options.encode() or None))


def unmount(target: str, flags: int) -> None:
    """Take a mount away."""
    _checked(_function("umount2")(os.fsencode(target), ctypes.c_int(flags)))


def pivot_root(new: str, old: str) -> None:
    """Make a mount the root of this mount namespace."""
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, "pivot_root has no known number on this machine")
    syscall(number, os.fsencode(new), os.fsencode(old))


def copy_of_mount(path: str, recursive: bool) -> int:
    """A descriptor of a mount, placed nowhere yet, that shows a file or a folder."""
    flags = _TREE_CLONE | _TREE_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    return syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)


def change_mount(tree: int, flags: int, recursive: bool, user_map: int | None = None) -> None:
    """Set flags of a mount; with the descriptor of a user namespace, show its files by that map."""
    flags |= _IDMAP if user_map is not None else 0
    attributes = struct.pack("<QQQQ", flags, 0, 0, user_map or 0)
    where = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    syscall(_MOUNT_SETATTR, tree, b"", where, attributes, len(attributes))


def place_mount(tree: int, target: str) -> None:
    """Place a mount on a file or a folder."""
    syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _FROM_EMPTY_PATH)


def syscall(number: int, *args: int | bytes | None) -> int:
    """Call the kernel."""
    given = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    return _checked(_function("syscall")(ctypes.c_long(number), *given))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _function(name: str) -> ctypes._NamedFuncPointer:
    libc = _libc()
    if sys.platform != "linux" or not hasattr(libc, name):
        raise OSError(errno.ENOSYS, f"{name} is not on this platform")
    found: ctypes._NamedFuncPointer = getattr(libc, name)
    return found


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def cut_off_network() -> tuple[bool, bool]:
    """Leave the network for good: whether that worked, and whether in a namespace of users."""
    with contextlib.suppress(OSError):
        unshare(NEW_NETWORK)
        return True, False
    user, group = os.getuid(), os.getgid()
    try:
        unshare(NEW_USERS | NEW_NETWORK)
    except OSError:
        return False, False
    with contextlib.suppress(OSError):  # else the user is shown as nobody, with the same rights
        Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="utf-8")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="utf-8")
    return True, True

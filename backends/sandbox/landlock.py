"""Which files a sandboxed child may touch: Landlock rules, enforced by the Linux kernel for good.

A child may read the interpreter, the installed packages, the system's libraries, and the folders of the
files that it was given. It may write in folders that it was given and in its working directory. It may
not open TCP connections or signal processes outside. Where the kernel has no Landlock (before Linux
5.13, or another system), `confine` returns False.

Source: Linux, Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from collage.backends.sandbox.codec import OWN_PACKAGES

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
# From execute (bit 0) to moving between folders (bit 13), all but making devices (bits 6 and 11).
_ALL_OLD = (1 << 14) - 1
_DEVICES = 1 << 6 | 1 << 11
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE = (_ALL_OLD & ~_DEVICES) | _TRUNCATE
_FOR_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_TCP = 1 << 0 | 1 << 1
_SCOPES = 1 << 0 | 1 << 1  # abstract sockets, signals

_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/proc", "/sys"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group"),
    *("/etc/OpenCL", "/etc/vulkan", "/etc/alternatives", "/run/nvidia-persistenced"),
)
_DEVICE_FOLDER = "/dev"
# CUDA's driver names its threads there, and does not start where it cannot.
_OWN_THREADS = "/proc/self/task"


def confinable() -> bool:
    """True where the kernel can restrict a process to the files that it was given."""
    return sys.platform == "linux" and _version(ctypes.CDLL(None, use_errno=True)) >= 1


def confine(readable: Iterable[str], writable: Iterable[str]) -> bool:
    """Restrict this process and all that it starts, for good.

    Needs `no_new_privs`, or privileges.

    Args:
        readable: more files and folders that may be read.
        writable: files and folders that may be read, written, made and removed.

    Returns:
        False where the kernel cannot do it; nothing is restricted then.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = _version(libc)
    if version < 1:
        return False
    handled = _handled(version)
    network, scopes = _TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("<QQQ", handled, network, scopes)[:size]
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    try:
        for path in (*_SYSTEM, *interpreter_paths(), *readable):
            _allow(libc, ruleset, path, _READ & handled)
        _allow(libc, ruleset, _OWN_THREADS, (_READ | _WRITE_FILE | _TRUNCATE) & handled)
        _allow(libc, ruleset, _DEVICE_FOLDER, (_READ | _WRITE_FILE | _IOCTL) & handled)
        for path in writable:
            _allow(libc, ruleset, path, (_WRITE | _READ) & handled)
        return bool(libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) == 0)
    finally:
        os.close(ruleset)


def interpreter_paths() -> list[str]:
    """Where Python and its packages live."""
    prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return [*prefixes, *(entry for entry in (*sys.path, *libraries) if entry), *package_folders()]


@lru_cache(maxsize=1)
def package_folders() -> list[str]:
    """Folders of our own packages and of plugins: editable installs lie outside of `sys.path`.

    The fork server asks once, and its children inherit the answer.
    """
    plugins = {point.module.partition(".")[0] for point in entry_points(group="collage.backends")}
    folders = []
    for name in sorted(OWN_PACKAGES | plugins):
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            folders += list(spec.submodule_search_locations)
            # In a checkout some of our packages are links to folders beside it.
            inside = Path(folders[-1]).iterdir()
            folders += [str(child.resolve()) for child in inside if child.is_symlink()]
        elif spec is not None and spec.origin is not None:
            folders.append(str(Path(spec.origin).parent))
    return folders


def granted(paths: Sequence[Path]) -> tuple[list[str], list[str]]:
    """What the paths in a task's arguments let it read, and what write.

    A folder may be written. A file may be read with all that lies beside it (external weights). Of a
    path that is not there yet the folder may be written.
    """
    readable, writable = [], []
    for path in paths:
        whole = path.absolute()
        if whole.is_dir():
            writable.append(str(whole))
        elif whole.exists():
            readable.append(str(whole.parent))
        elif whole.parent.is_dir():
            writable.append(str(whole.parent))
    return readable, writable


def _version(libc: ctypes.CDLL) -> int:
    return int(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG)))


def _handled(version: int) -> int:
    # Moving between folders came with version 2, truncation with 3, device commands with 5.
    handled = _ALL_OLD if version >= 2 else _ALL_OLD & ~(1 << 13)
    handled |= _TRUNCATE if version >= 3 else 0
    return handled | (_IOCTL if version >= 5 else 0)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, access: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # what is not there needs no permission
        return
    try:
        allowed = access if Path(path).is_dir() else access & _FOR_FILES
        rule = struct.pack("<Qi", allowed, handle)
        libc.syscall(_ADD_RULE, ruleset, ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(handle)

"""Which files a sandboxed child may touch: Landlock rules, enforced by the Linux kernel for good.

A child may read the interpreter, the installed packages, the system's libraries, and the folders of the
files that it was given. It may write in folders that it was given and in its working directory; there it
makes plain files and folders only. Of the devices it may use those without state, and those of GPUs
where its target needs them. It may not open TCP connections or signal processes outside. Where the
kernel has no Landlock (before Linux 5.13, or another system), `confine` returns False.

Source: Linux, Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
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
# From execute (bit 0) to moving between folders (bit 13).
_ALL_OLD = (1 << 14) - 1
# Devices (bits 6 and 11), sockets, pipes and links: the owner could follow these, or wait for them.
_SPECIAL_FILES = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE = (_ALL_OLD & ~_SPECIAL_FILES) | _TRUNCATE
_FOR_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_TCP = 1 << 0 | 1 << 1
_SCOPES = 1 << 0 | 1 << 1  # abstract sockets, signals

SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/sys"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group"),
    *("/etc/OpenCL", "/etc/vulkan", "/etc/alternatives", "/run/nvidia-persistenced"),
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_GPU_DEVICES = ("nvidia*", "nvhost*", "nvmap", "dri", "kfd", "dxg", "accel")
# CUDA's driver names its threads there, and does not start where it cannot.
_OWN_THREADS = "/proc/self/task"


def confinable() -> bool:
    """True where the kernel can restrict a process to the files that it was given."""
    return sys.platform == "linux" and _version(ctypes.CDLL(None, use_errno=True)) >= 1


def confine(readable: Iterable[str], writable: Iterable[str], gpus: bool = False) -> bool:
    """Restrict this process and all that it starts, for good.

    Needs `no_new_privs`, or privileges.

    Args:
        readable: more files and folders that may be read.
        writable: files and folders that may be read, written, made and removed.
        gpus: GPUs may be used.

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
        for path in (*SYSTEM, "/proc", *interpreter_paths(), *readable):
            _allow(libc, ruleset, path, _READ & handled)
        for path in start_folders():
            _allow(libc, ruleset, path, _READ_DIR & handled)
        for path in devices(gpus):
            _allow(libc, ruleset, path, (_READ_FILE | _READ_DIR | _WRITE_FILE | _IOCTL) & handled)
        if gpus:
            _allow(libc, ruleset, _OWN_THREADS, (_READ | _WRITE_FILE | _TRUNCATE) & handled)
        for path in writable:
            _allow(libc, ruleset, path, (_WRITE | _READ) & handled)
        return bool(libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) == 0)
    finally:
        os.close(ruleset)


def devices(gpus: bool) -> list[str]:
    """Devices without state, and those of GPUs where they may be used."""
    found = list(_DEVICES)
    if gpus:
        for pattern in _GPU_DEVICES:
            found += sorted(map(str, Path("/dev").glob(pattern)))
    return found


def interpreter_paths() -> list[str]:
    """Where Python and its packages live."""
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    installed = [entry for entry in sys.path if _holds_software(entry)]
    return [*_prefixes(), *installed, *(entry for entry in libraries if entry), *package_folders()]


def start_folders() -> list[str]:
    """Entries of `sys.path` that hold more than software: a child may list them, and read none.

    Python adds the folder in which it, or its script, was started. Our own packages there are named
    one by one, and so is that of a task's function.
    """
    return [entry for entry in sys.path if entry not in ("", "/") and not _holds_software(entry)]


def _prefixes() -> set[str]:
    return {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}


@lru_cache(maxsize=1024)
def _holds_software(entry: str) -> bool:
    path = Path(entry)
    if path.parent == path or not path.is_dir():
        return path.is_file()
    if any(path.is_relative_to(prefix) for prefix in _prefixes()):
        return True
    return path.name in ("site-packages", "dist-packages") or any(path.glob("*.dist-info"))


def package_folders() -> list[str]:
    """Folders of our own packages and of plugins: editable installs lie outside of `sys.path`."""
    return _package_folders(tuple(sys.path))


@lru_cache(maxsize=4)
def _package_folders(path: tuple[str, ...]) -> list[str]:
    # The fork server asks once, and its children inherit the answer.
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


@dataclass(frozen=True)
class Given:
    """A file or folder that a child may use, and the user and group that own it."""

    path: str
    writable: bool
    owner: tuple[int, int]

    @classmethod
    def of(cls, path: Path, writable: bool, owned_as: Path | None = None) -> Given:
        """The entry of a path; `owned_as` has its owner."""
        found = (owned_as or path).stat()
        return cls(str(path), writable, (found.st_uid, found.st_gid))


def granted(args: object) -> list[Given]:
    """What the paths in a task's arguments let it read and write.

    A folder may be written. A file may be read with all that lies beside it (external weights), but
    for the root folder, where only the file may. Of a path that is not there yet the folder may be
    written.
    """
    found = []
    for path in _paths_in(args):
        whole = path.absolute()
        if whole.is_dir():
            found.append(Given.of(whole, writable=True))
        elif whole.exists():
            shown = whole if whole.parent == Path("/") else whole.parent
            found.append(Given.of(shown, writable=False, owned_as=whole))
        elif whole.parent.is_dir():
            found.append(Given.of(whole.parent, writable=True))
    return list(dict.fromkeys(found))


def more_writable(paths: Iterable[Path]) -> list[Given]:
    """Files and folders that may be written, as far as they are there."""
    return [Given.of(path.absolute(), writable=True) for path in paths if path.exists()]


def imported_code() -> list[Given]:
    """Packages and modules that this process has imported from folders that hold more than software."""
    folders = {str(Path(entry).absolute()) for entry in sys.path if not _holds_software(entry)}
    found = []
    for name, module in list(sys.modules.items()):
        if "." in name or name == "__main__":
            continue
        places = list(getattr(module, "__path__", ())) or [getattr(module, "__file__", None)]
        found += [place for place in places if place and place.rpartition("/")[0] in folders]
    return [Given.of(Path(place), writable=False) for place in dict.fromkeys(found)]


def _paths_in(value: object) -> Iterator[Path]:
    """Every path inside a task's arguments."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _paths_in(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _paths_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            yield from _paths_in(getattr(value, part.name))


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

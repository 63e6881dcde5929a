"""The files that a sandboxed child sees: a root folder of its own, with what it was given and no more.

The child's first process leaves the mount namespace of the fork server and builds a small file system in
memory: installed software, the system's libraries and the given files at their usual paths, `/proc` of
the child's own processes, a few devices, a small `/dev/shm`. Parents of these are empty folders. Then
that becomes the root, and nothing else can be named.

Where the child has a user of its own, mounts show what the owner of a given file owns as the child's (an
idmapped mount, Linux 5.12 or newer). So it needs no capability to use them, and on disk its files belong
to that owner.

Source: Linux, Documentation/filesystems/idmappings.rst; bubblewrap.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from collage.backends.sandbox import linux

_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "fd/0",
    "/dev/stdout": "fd/1",
    "/dev/stderr": "fd/2",
}
_FOLDERS_SIZE, _SHARED_MEMORY_SIZE = "16m", "64m"
_MOST_LINKS = 40


@dataclass(frozen=True)
class Shown:
    """A file or folder that the child sees at its usual path."""

    path: str
    writable: bool = False
    # what this user and group own is to be the child's
    owner: tuple[int, int] | None = None
    device: bool = False


def enter(
    shown: Iterable[Shown],
    work_dir: str,
    *,
    user_maps: Mapping[tuple[int, int], int],
    own_proc: bool,
    all_mounts: bool,
) -> bool:
    """Make a view of files this process's root; for good, as far as it may mount nothing more.

    Args:
        shown: what is seen; what is not there is left out.
        work_dir: the child's folder, seen as it is, and the current folder afterward.
        user_maps: for an owner the descriptor of a user namespace that turns it into the child's user.
        own_proc: `/proc` can show this process's namespace.
        all_mounts: file systems mounted inside a shown folder are seen too, as they must be where this
            process is not root outside of its user namespace.

    Returns:
        False when a file system cannot show its files as another user's: they are seen as they are.

    Raises:
        OSError: the kernel refuses.
    """
    linux.unshare(linux.NEW_MOUNTS)
    linux.mount(None, "/", None, linux.RECURSIVE | linux.PRIVATE)
    root = os.path.realpath(work_dir)
    links: dict[str, str] = {}
    proc = [] if own_proc else [Shown("/proc")]
    entries = _entries([*shown, *proc, Shown(root, writable=True)], set(user_maps), links)
    # A copy of a mount outlives that its place is covered by the new root.
    trees = [(entry.path, *_copied(entry, user_maps, all_mounts)) for entry in entries]
    linux.mount("tmpfs", root, "tmpfs", linux.NO_SETUID, f"mode=755,size={_FOLDERS_SIZE}")
    for path, tree, is_folder, _ in trees:
        _make_place(root + path, is_folder)
        linux.place_mount(tree, root + path)
        os.close(tree)
    if own_proc:
        _make_place(f"{root}/proc", is_folder=True)
        flags = linux.NO_SETUID | linux.NO_DEVICES | linux.NO_EXECUTION
        linux.mount("proc", f"{root}/proc", "proc", flags)
    _make_place(f"{root}/dev/shm", is_folder=True)
    flags = linux.NO_SETUID | linux.NO_DEVICES
    options = f"mode=1777,size={_SHARED_MEMORY_SIZE}"
    linux.mount("tmpfs", f"{root}/dev/shm", "tmpfs", flags, options)
    for path, target in {**links, **_LINKS}.items():
        _make_link(root + path, target)
    os.chdir(root)
    linux.pivot_root(".", ".")
    linux.unmount(".", linux.DETACH)
    with contextlib.closing(_Handle("/")) as handle:
        linux.change_mount(handle.number, linux.READ_ONLY, recursive=False)
    os.chdir(root)
    return all(mapped for *_, mapped in trees)


class _Handle:
    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_PATH | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self.number)


def _entries(
    shown: Iterable[Shown], owners: set[tuple[int, int]], links: dict[str, str]
) -> list[Shown]:
    """What is to be mounted, parents first; the links on the way to it are added to `links`."""
    found: dict[str, Shown] = {}
    for entry in shown:
        real = _real_path(entry.path, links)
        if real is None or not Path(real).exists():
            continue
        owner = entry.owner if entry.owner in owners else None
        known = found.get(real)
        if known is None or (entry.writable and not known.writable):
            found[real] = replace(entry, path=real, owner=owner)
    kept: list[Shown] = []
    for path in sorted(found, key=lambda path: path.split("/")):
        around = [other for other in kept if path.startswith(other.path + "/")]
        if not around or not _covers(around[-1], found[path]):
            kept.append(found[path])
    return kept


def _covers(around: Shown, inside: Shown) -> bool:
    if (inside.writable and not around.writable) or around.owner != inside.owner:
        return False
    return Path(around.path).stat().st_dev == Path(inside.path).stat().st_dev


def _real_path(path: str, links: dict[str, str]) -> str | None:
    """The path without links; those passed on the way are added. None where they go in circles."""
    here, left, passed = "", path.split("/"), 0
    while left:
        name = left.pop(0)
        if name == "..":
            here = here.rpartition("/")[0]
        elif name not in ("", "."):
            entry = f"{here}/{name}"
            if not Path(entry).is_symlink():
                here = entry
                continue
            passed += 1
            if passed > _MOST_LINKS:
                return None
            links[entry] = str(Path(entry).readlink())
            here = "" if links[entry].startswith("/") else here
            left = [*links[entry].split("/"), *left]
    return here or None


def _copied(
    entry: Shown, user_maps: Mapping[tuple[int, int], int], all_mounts: bool
) -> tuple[int, bool, bool]:
    """A mount of one entry, whether that is a folder, and whether its owner is mapped."""
    recursive = all_mounts or entry.owner is None
    tree = linux.copy_of_mount(entry.path, recursive)
    flags = linux.NO_SETUID | (0 if entry.device else linux.NO_DEVICES)
    flags |= 0 if entry.writable or entry.device else linux.READ_ONLY
    mapped = True
    user_map = None if entry.owner is None else user_maps[entry.owner]
    try:
        linux.change_mount(tree, flags, recursive, user_map)
    except OSError as error:
        if user_map is None or error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        mapped = False
        linux.change_mount(tree, flags, recursive)
    return tree, Path(entry.path).is_dir(), mapped


def _make_place(where: str, is_folder: bool) -> None:
    """Make a folder or an empty file to mount on; below a mount it is there."""
    path = Path(where)
    if path.exists():
        return
    (path if is_folder else path.parent).mkdir(parents=True, exist_ok=True)
    if not is_folder:
        path.touch(0o644)


def _make_link(where: str, target: str) -> None:
    path = Path(where)
    if not path.is_symlink() and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

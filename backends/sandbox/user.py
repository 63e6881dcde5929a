"""The user of a sandboxed child: where the owner is root, a user that no other process has.

Such a child can neither signal nor inspect other processes, and the kernel counts its processes, so a
fork bomb ends at RLIMIT_NPROC. It has no capability where mounts can show the owner's files as its own
(`file_view`). Elsewhere it keeps one, to pass by permission bits (`CAP_DAC_OVERRIDE`), and Landlock
says which files it may use (`landlock`); a program that the child starts keeps it too.

Where the owner is not root, children run as the owner, without capabilities. So they do in a container
without `CAP_SETUID` or with a single mapped user.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import signal
import struct
import sys
from pathlib import Path

from collage.backends.sandbox import linux

# Numbers that no distribution uses, inside the 65,536 that containers have.
_FIRST_USER, _USERS = 60600, 550
_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS, _NO_SETUID_FIXUP = 28, 1 << 2
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 2, 4
_CAP_DAC_OVERRIDE = 1
_CAPABILITY_VERSION = 0x20080522


class Users:
    """Users of children. One that mounts know serves again when its child is gone with all it started."""

    def __init__(self) -> None:
        # Two fork servers of one machine are unlikely to use one number at the same time.
        self._numbers = itertools.count(os.getpid())
        self._idle: list[int] = []
        self._maps: dict[int, dict[tuple[int, int], int]] = {}

    def take(self) -> int:
        """A user that no child has."""
        return self._idle.pop() if self._idle else user_for(next(self._numbers))

    def give_back(self, user: int) -> None:
        """Its child is gone."""
        if user in self._maps:
            self._idle.append(user)

    def maps(self, user: int, owners: set[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """For each owner a descriptor of the namespace that turns it into this user."""
        known = self._maps.setdefault(user, {})
        for owner in owners - set(known):
            known[owner] = owned_by_child(owner, user)
        return {owner: known[owner] for owner in owners}

    def close_others(self, user: int) -> None:
        """In a child: keep only what is its own."""
        for other, maps in self._maps.items():
            if other != user:
                for number in maps.values():
                    os.close(number)


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


def give_up_privileges(user: int | None, passes_files: bool = False) -> None:
    """Change to a user, if one is given, and drop every capability for good.

    Args:
        passes_files: keep the one to pass by permission bits.

    Raises:
        OSError: this process may not become that user.
    """
    for capability in range(64):
        if not passes_files or capability != _CAP_DAC_OVERRIDE:
            linux.prctl(_PR_CAPBSET_DROP, capability)
    if passes_files:
        linux.prctl(_PR_SET_KEEPCAPS, 1)
        # Else access(2), which MNN's converter calls first, ignores the kept capability.
        linux.prctl(_PR_SET_SECUREBITS, _NO_SETUID_FIXUP)
    if user is not None:
        _change(user)
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "capset"):
        return
    kept = 1 << _CAP_DAC_OVERRIDE if passes_files else 0
    header = struct.pack("<Ii", _CAPABILITY_VERSION, 0)
    libc.capset(header, struct.pack("<6I", kept, kept, kept, 0, 0, 0))
    linux.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    if passes_files:
        linux.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE)


def owned_by_child(owner: tuple[int, int], user: int) -> int:
    """A descriptor of a user namespace for mounts, where a user and group change places with `user`.

    Raises:
        OSError: the kernel refuses.
    """
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            linux.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            linux.unshare(linux.NEW_USERS)
            os.write(tell, b"x")
            signal.pause()
        os._exit(1)
    os.close(tell)
    try:
        if os.read(ready, 1) != b"x":
            raise OSError(errno.EPERM, "no namespace of users")
        for name, number in (("gid_map", owner[1]), ("uid_map", owner[0])):
            Path(f"/proc/{pid}/{name}").write_text(_swapped(number, user), encoding="utf-8")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _swapped(one: int, other: int) -> str:
    """A map of all numbers to themselves but two, which change places."""
    first, second = sorted((one, other))
    ranges = [(0, first), (first + 1, second), (second + 1, _known_users())]
    same = [f"{start} {start} {end - start}" for start, end in ranges if end > start]
    return "\n".join([*same, f"{one} {other} 1", f"{other} {one} 1", ""])


def _known_users() -> int:
    """One more than the highest number that this process's namespace knows."""
    lines = Path("/proc/self/uid_map").read_text(encoding="utf-8").splitlines()
    return max(int(start) + int(count) for start, _, count in map(str.split, lines))


def _change(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)

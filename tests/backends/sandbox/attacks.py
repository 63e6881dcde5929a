"""What an attacker tries who runs code in a child; each returns what it got, or raises OSError."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from collage.backends.sandbox.seccomp import _ABSENT, _MEMORY_FILES, _REFUSED

_COLUMN = 0 if os.uname().machine == "x86_64" else 1
_PTRACE_ATTACH = 16


@dataclass(frozen=True)
class Around:
    """What there is to attack outside of the child."""

    owner: int
    sibling: int
    socket_path: str
    abstract_name: str
    datagram_path: str
    tcp_port: int
    shared_memory: str
    secret: str


def all_attacks(around: Around) -> dict[str, str]:
    """For each attack what it got, or `refused: …`."""
    return {name: _outcome(attack, around) for name, attack in ATTACKS.items()}


def _outcome(attack: Callable[[Around], object], around: Around) -> str:
    try:
        return f"GOT {attack(around)!r}"
    except OSError as error:
        return f"refused: {error}"


def _open(path: str, flags: int = os.O_RDONLY) -> Callable[[Around], object]:
    def attack(around: Around) -> object:
        number = os.open(path, flags)
        os.close(number)
        return path

    return attack


def _call(number: int, *args: int) -> object:
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(arg) for arg in args))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _syscall(name: str) -> Callable[[Around], object]:
    """True numbers and harmless arguments: EFAULT or EINVAL would mean that the kernel looked at them."""
    number = {**_REFUSED, **_ABSENT, **_MEMORY_FILES}[name][_COLUMN]

    def attack(around: Around) -> object:
        if number is None:
            raise OSError("not on this machine")
        try:
            return _call(number, -1, -1, -1, -1, -1, -1)
        except PermissionError as error:
            raise OSError(str(error)) from None
        except OSError as error:
            if os.strerror(error.errno or 0) == os.strerror(38):
                raise
            return f"the kernel answered {error}"

    return attack


def _write_shared_memory(around: Around) -> object:
    return Path(around.shared_memory).write_text("overwritten", encoding="utf-8")


def _connect(family: int, kind: int, address: object) -> object:
    with socket.socket(family, kind) as client:
        client.settimeout(3)
        client.connect(address)  # type: ignore[arg-type]
    return address


def _send_from_pair(around: Around) -> object:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        return one.sendto(b"hello", around.datagram_path)


def _kill(pid: int) -> object:
    os.kill(pid, 0)
    return pid


def _trace(pid: int) -> object:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(_PTRACE_ATTACH, pid, None, None) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pid


def _become_root(around: Around) -> object:
    # Where the child is root by number, that gives nothing; then it has no capability to show.
    if os.getuid() == 0:
        raise OSError("this child is not another user")
    os.setresuid(0, 0, 0)
    return os.getuid()


def _change_group(around: Around) -> object:
    os.setgroups([0])
    return os.getgroups()


def _capabilities(around: Around) -> object:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    # Those that it may not take (CapBnd) a plain user cannot give up; `no_new_privs` makes them void.
    sets = ("CapInh", "CapPrm", "CapEff", "CapAmb")
    held = [line for line in lines if line.startswith(sets) and int(line.split()[1], 16)]
    if not held:
        raise OSError("none")
    return held


def _no_new_privileges(around: Around) -> object:
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    if "NoNewPrivs:\t1" in text:
        raise OSError("set")
    return "not set"


def _new_namespace(around: Around) -> object:
    libc = ctypes.CDLL(None, use_errno=True)
    number = 56 if _COLUMN == 0 else 220
    pid = libc.syscall(number, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pid


def _set_user_bit(around: Around) -> object:
    Path("tool").write_text("x", encoding="utf-8")
    Path("tool").chmod(0o4755)
    return oct(Path("tool").stat().st_mode)


def _set_user_bit_when_made(around: Around) -> object:
    os.close(os.open("made", os.O_CREAT | os.O_WRONLY, 0o4755))
    if not Path("made").stat().st_mode & 0o4000:
        raise OSError("the bit was not set")
    return "made"


def _link(around: Around) -> object:
    Path("link").symlink_to("/etc/passwd")
    return "link"


def _pipe_with_name(around: Around) -> object:
    os.mkfifo("pipe")
    return "pipe"


def _poison(around: Around) -> object:
    """Change what later children import."""
    import numpy as np

    path = Path(np.__file__).with_name("planted.py")
    path.write_text("", encoding="utf-8")
    return path


def _environment(around: Around) -> object:
    return Path(f"/proc/{around.owner}/environ").read_bytes()


def _spare_itself(around: Around) -> object:
    """Be killed last when memory runs out."""
    return Path("/proc/self/oom_score_adj").write_text("-1000", encoding="utf-8")


def _memory_of_the_first(around: Around) -> object:
    with Path(f"/proc/{os.getppid()}/mem").open("r+b") as memory:
        return memory.fileno()


_UNIX, _STREAM, _DATAGRAM = socket.AF_UNIX, socket.SOCK_STREAM, socket.SOCK_DGRAM

ATTACKS: dict[str, Callable[[Around], object]] = {
    "read /etc/shadow": _open("/etc/shadow"),
    "read a secret of the owner": lambda around: Path(around.secret).read_text(encoding="utf-8"),
    "write /dev/kmsg": _open("/dev/kmsg", os.O_WRONLY),
    **{f"open {path}": _open(path, os.O_RDWR) for path in ("/dev/loop0", "/dev/fuse", "/dev/kvm")},
    "open /dev/mem": _open("/dev/mem"),
    "open /dev/vsock": _open("/dev/vsock"),
    "open /dev/userfaultfd": _open("/dev/userfaultfd", os.O_RDWR),
    "open a terminal": _open("/dev/tty0", os.O_RDWR),
    "open a disk": _open("/dev/vda"),
    "write core_pattern": _open("/proc/sys/kernel/core_pattern", os.O_WRONLY),
    "write sysrq": _open("/proc/sysrq-trigger", os.O_WRONLY),
    "write a file in /dev/shm": _write_shared_memory,
    "connect to a socket": lambda around: _connect(_UNIX, _STREAM, around.socket_path),
    "connect to an abstract socket": lambda around: _connect(_UNIX, _STREAM, around.abstract_name),
    "send a datagram": lambda around: _connect(_UNIX, _DATAGRAM, around.datagram_path),
    "send a datagram from a pair": _send_from_pair,
    "connect by TCP": lambda around: _connect(socket.AF_INET, _STREAM, ("127.0.0.1", around.tcp_port)),
    "reach the virtual machine's host": lambda around: _connect(40, _STREAM, (2, 1)),
    "trace the owner": lambda around: _trace(around.owner),
    "trace its parent": lambda around: _trace(os.getppid()),
    "write its parent's memory": _memory_of_the_first,
    "signal the owner": lambda around: _kill(around.owner),
    "signal a sibling": lambda around: _kill(around.sibling),
    "read the owner's environment": _environment,
    "become root": _become_root,
    "change its groups": _change_group,
    "have capabilities": _capabilities,
    "gain privileges by a program": _no_new_privileges,
    "make a namespace": _new_namespace,
    "set the user bit": _set_user_bit,
    "set the user bit when made": _set_user_bit_when_made,
    "make a link": _link,
    "make a pipe with a name": _pipe_with_name,
    "change installed software": _poison,
    "spare itself": _spare_itself,
    **{f"call {name}": _syscall(name) for name in (*_REFUSED, *_ABSENT, *_MEMORY_FILES)},
}


def fork_without_end() -> int:
    """How many processes could be started."""
    made = 0
    with contextlib.suppress(BlockingIOError):
        while made < 5000:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            made += 1
    return made


def fill_the_disk(unlinked: bool) -> None:
    """Write files until somebody stops it; with a name or without."""
    block = os.urandom(1 << 20)
    kept = []
    for number in range(4000):
        file = Path(f"{number}").open("wb", buffering=0)  # noqa: SIM115  (stays open)
        kept.append(file)
        if unlinked:
            Path(f"{number}").unlink()
        for _ in range(8):
            file.write(block)
        time.sleep(0.01)


def allocate_without_end(processes: int) -> None:
    """Hold more and more memory, in several processes."""
    for _ in range(processes - 1):
        if os.fork() == 0:
            break
    hoard = []
    while True:
        piece = mmap.mmap(-1, 16 << 20)
        for start in range(0, len(piece), 4096):
            piece[start] = 1
        hoard.append(piece)
        time.sleep(0.02)


def flee_and_allocate() -> None:
    """Leave every group and parent, and hold more and more memory."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            allocate_without_end(1)
        os._exit(0)
    time.sleep(5)

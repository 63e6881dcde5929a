"""The other side of `collage.backends.sandbox.run`: the fork server, and a child's life around its task.

Terms: the *owner* is the process that calls `run_in_child`. The *fork server* is one single-threaded
helper process of the owner, without the owner's environment and, where the platform allows that,
without a network. It imports no runtime and forks a *child* for each call, in milliseconds and in a
state that no earlier task has touched.

Invariants:

* Nothing outlives the owner: the fork server ends when its control socket closes or its parent changes,
  and kills all children; the kernel kills a child when the fork server dies.
* Nothing outlives its task: a child leads its own session and group, which is killed when it ends;
  processes that left the group come to the fork server (child subreaper) and are killed there.
* A child's working directory is empty at the start and removed at the end.

Only the standard library is imported at the top, so that a fork server starts quickly.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import itertools
import json
import os
import pickle
import re
import resource
import selectors
import shutil
import signal
import socket
import struct
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from collage.backends.sandbox.native_output import one_line
from collage.backends.sandbox.user import can_change_user, give_up_privileges, prctl, user_for

REQUEST_BYTES = 1 << 20
OWNER_POLL_S = 0.5

_HEADER = struct.Struct("<cQ")
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_CHILD_SUBREAPER = 36
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_OUT_OF_MEMORY = re.compile(
    r"bad_alloc|bad allocation|out of memory|failed to allocate|cannot allocate|unable to allocate",
    re.IGNORECASE,
)

_channel: socket.socket | None = None  # set in a child only


@dataclass
class _ForkedChild:
    """A running child."""

    pid: int
    status: socket.socket
    work_dir: Path


def frame(kind: bytes, content: bytes) -> bytes:
    """One frame of a channel: kind (one byte), length, content."""
    return _HEADER.pack(kind, len(content)) + content


def split_frame(data: bytearray) -> tuple[bytes, bytes] | None:
    """Remove the first whole frame from received bytes; None while it is incomplete."""
    if len(data) < _HEADER.size:
        return None
    kind, size = _HEADER.unpack_from(data)
    end = _HEADER.size + size
    if len(data) < end:
        return None
    content = bytes(data[_HEADER.size : end])
    del data[:end]
    return kind, content


def send_message(message: object) -> None:
    """Send plain data to this child's owner while the task runs; elsewhere a no-op."""
    if _channel is not None:
        from collage.backends.sandbox.codec import encode

        _channel.sendall(frame(b"M", encode(message)))


def in_child() -> bool:
    """True inside a sandboxed child."""
    return _channel is not None


def serve(control_fd: int, preload: Sequence[str]) -> None:
    """Run the fork server until its owner is gone."""
    control = socket.socket(fileno=control_fd)
    owner = os.getppid()
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    isolated = _cut_off_network()
    # Two fork servers of one machine are unlikely to use one number at the same time.
    own_users = itertools.count(os.getpid()) if can_change_user() else None
    for name in preload:
        _import_quietly(name)
    from collage.backends.sandbox.landlock import package_folders

    package_folders()
    gc.collect()
    gc.freeze()  # children share these pages until one writes
    hello = {"network_isolated": isolated, "own_users": own_users is not None}
    control.send(json.dumps(hello).encode())
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, _on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what an interrupt means
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    children: dict[int, _ForkedChild] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        try:
            while os.getppid() == owner:
                for key, _ in selector.select(OWNER_POLL_S):
                    if key.fileobj is control:
                        if not _accept(control, children, selector, own_users):
                            return
                    elif key.fileobj == wake_read:
                        with contextlib.suppress(BlockingIOError):
                            os.read(wake_read, 4096)
                    elif key.data in children:  # the owner asks to kill it, or is gone
                        _kill_group(key.data)
                        selector.unregister(key.fileobj)
                _reap(children, selector)
        finally:
            for pid in children:
                _kill_group(pid)
            while children:
                _reap(children, selector, wait=True)


def _accept(
    control: socket.socket,
    children: dict[int, _ForkedChild],
    selector: selectors.BaseSelector,
    own_users: Iterator[int] | None,
) -> bool:
    """Fork one child; False when the owner is gone."""
    data, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES, 3)
    if not data:
        return False
    request = json.loads(data)
    channel_fd, status_fd, log_fd = fds
    # Imported here once, a module is there in every later child.
    if request["preload"]:
        _import_quietly(request["preload"])
    status = socket.socket(fileno=status_fd)
    work_dir = Path(tempfile.mkdtemp(prefix="collage-child-"))
    if request["user"] is None and own_users is not None:
        request["user"] = user_for(next(own_users))
    if request["user"] is not None:
        os.chown(work_dir, request["user"], request["user"])
    fork_server = os.getpid()
    pid = os.fork()
    if pid == 0:
        selector.close()
        control.close()
        status.close()
        for other in children.values():
            other.status.close()
        _run_child(request, channel_fd, log_fd, work_dir, fork_server)
    os.close(channel_fd)
    os.close(log_fd)
    with contextlib.suppress(OSError):  # the owner may be gone, which is seen below
        status.send(json.dumps({"work_dir": str(work_dir)}).encode())
    children[pid] = _ForkedChild(pid, status, work_dir)
    selector.register(status, selectors.EVENT_READ, pid)
    return True


def _reap(
    children: dict[int, _ForkedChild], selector: selectors.BaseSelector, wait: bool = False
) -> None:
    """Reap ended children, and kill what they started."""
    while True:
        try:
            pid, status = os.waitpid(-1, 0 if wait else os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        wait = False
        child = children.pop(pid, None)
        if child is None:
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        _kill_orphans(children)
        shutil.rmtree(child.work_dir, ignore_errors=True)
        with contextlib.suppress(OSError):
            child.status.send(json.dumps({"exit": os.waitstatus_to_exitcode(status)}).encode())
        with contextlib.suppress(KeyError):
            selector.unregister(child.status)
        child.status.close()


def _kill_orphans(children: Mapping[int, _ForkedChild]) -> None:
    """Kill every descendant that the kernel gave to this process because its parent died."""
    for _ in range(100):  # each round brings the children of those killed in the round before
        orphans = [pid for pid in _own_children() if pid not in children]
        if not orphans:
            return
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _own_children() -> Iterator[int]:
    own = os.getpid()
    with contextlib.suppress(OSError):  # only kernels built with it have this file
        yield from map(int, Path(f"/proc/self/task/{own}/children").read_text(encoding="utf-8").split())
        return
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The second field is the command in parentheses, which may contain spaces.
            after_name = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(after_name[1]) == own:
                yield int(entry.name)


def _kill_group(pid: int) -> None:
    """Kill a child that is not reaped yet, with its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it may not lead a group yet
        os.kill(pid, signal.SIGKILL)


def _run_child(
    request: Mapping[str, Any], channel_fd: int, log_fd: int, work_dir: Path, fork_server: int
) -> NoReturn:
    """A child's whole life."""
    global _channel
    code = 1
    try:
        _set_up(request, log_fd, work_dir, fork_server)
        channel = socket.socket(fileno=channel_fd)
        _channel = channel
        code = _work(channel)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # Destructors of runtimes may hang or crash, and there is nothing left to save.
        os._exit(code)


def _set_up(request: Mapping[str, Any], log_fd: int, work_dir: Path, fork_server: int) -> None:
    """Set up the child's environment, limits and user."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(null)
    os.close(log_fd)
    faulthandler.enable()
    os.chdir(work_dir)
    os.environ.update({**request["environment"], "HOME": str(work_dir), "TMPDIR": str(work_dir)})
    os.environ["LOGNAME"] = "collage"  # some libraries ask for a name, and a child's own user has none
    tempfile.tempdir = str(work_dir)
    sys.path[:] = request["path"]
    for name, value in request["rlimits"].items():
        number = getattr(resource, name, None)
        if number is not None:
            hard = resource.getrlimit(number)[1]
            limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
            # At the hard limit of processor time the kernel kills without saying why.
            spare = 5 if name == "RLIMIT_CPU" and hard == resource.RLIM_INFINITY else 0
            resource.setrlimit(number, (limit, limit + spare))
    give_up_privileges(request["user"])
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if request["confine"]:
        from collage.backends.sandbox.landlock import confine

        confine(request["readable"], [*request["writable"], str(work_dir)])
    # After any change of user, which would clear it; then make sure that it was not too late.
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != fork_server:
        os._exit(1)


def _work(channel: socket.socket) -> int:
    from collage.backends.sandbox.codec import encode

    data = bytearray()
    while (found := split_frame(data)) is None:
        received = channel.recv(1 << 20)
        if not received:
            return 1
        data += received
    try:
        function, args = pickle.loads(found[1])  # from the owner, who is trusted
        result = encode(function(*args))
    except BaseException as error:
        channel.sendall(frame(b"E", json.dumps(_describe(error)).encode()))
        return 0
    channel.sendall(frame(b"R", result))
    return 0


def _describe(error: BaseException) -> dict[str, str]:
    text = str(error).strip()
    memory = isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(text) is not None
    trace = "".join(traceback.format_exception(error))
    return {
        "kind": "out_of_memory" if memory else "error",
        "type": type(error).__name__,
        "message": one_line(text),
        "trace": trace[-8000:],
    }


def _cut_off_network() -> bool:
    """Leave the network for good; False where the platform does not allow that."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare"):
        return False
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNET) == 0:
        return True
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    with contextlib.suppress(OSError):  # else the user is shown as nobody, with the same rights
        Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="utf-8")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="utf-8")
    return True


def _import_quietly(name: str) -> None:
    """Import a module, and call a function of it: `module` or `module:function`."""
    # The child reports a module that cannot be imported.
    with contextlib.suppress(Exception):
        module, _, function = name.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Does nothing: the wakeup descriptor is what ends the wait."""

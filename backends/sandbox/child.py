"""A child's life around its task, from the fork on; `fork_loop` forks it.

Where processes can have a namespace of their own, a child is two processes. The *first* has number 1
there: it builds what the child sees (`file_view`), gives up its rights, forks the *worker*, and ends
with it; the kernel then ends whatever else is left in the namespace. Elsewhere the child is the worker.

Only the standard library is imported at the top, so that a fork server starts quickly.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pickle
import re
import resource
import select
import signal
import socket
import struct
import sys
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from collage.backends.sandbox import linux
from collage.backends.sandbox.file_view import Shown, enter
from collage.backends.sandbox.landlock import SYSTEM, confine, devices, interpreter_paths
from collage.backends.sandbox.native_output import one_line
from collage.backends.sandbox.seccomp import refuse_calls
from collage.backends.sandbox.user import give_up_privileges

_HEADER = struct.Struct("<cQ")
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_OUT_OF_MEMORY = re.compile(
    r"bad_alloc|bad allocation|out of memory|failed to allocate|cannot allocate|unable to allocate",
    re.IGNORECASE,
)

_channel: socket.socket | None = None  # set in a child only


@dataclass(frozen=True)
class Surroundings:
    """What the platform gives a child, besides limits.

    Args:
        own_view: a root folder and a namespace of processes of its own.
        own_proc: `/proc` shows that namespace.
        all_mounts: as `file_view.enter` has it.
        user_maps: by the owner of given files, as `file_view.enter` has it.
    """

    own_view: bool = False
    own_proc: bool = False
    all_mounts: bool = False
    user_maps: Mapping[tuple[int, int], int] | None = None


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


def live(
    request: Mapping[str, Any],
    surroundings: Surroundings,
    *,
    channel_fd: int,
    log_fd: int,
    end_fd: int,
    group_fd: int | None,
    work_dir: Path,
) -> NoReturn:
    """A child's whole life.

    Args:
        end_fd: a pipe to the fork server; how the worker ended is written there.
        group_fd: of the child's control group, which it joins; None where it has none.
    """
    global _channel
    code = 1
    try:
        passes_files = _set_up(request, surroundings, log_fd, work_dir)
        if group_fd is not None:
            os.write(group_fd, b"0")
            os.close(group_fd)
        _give_up(request, passes_files, end_fd)
        if surroundings.own_view:
            _fork_worker(channel_fd, end_fd)
        os.close(end_fd)
        faulthandler.enable()
        given = [(entry["path"], entry["writable"]) for entry in request["given"]]
        readable = [path for path, writable in given if not writable]
        writable_paths = [path for path, writable in given if writable]
        confine(readable, [*writable_paths, str(work_dir)], request["gpus"])
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


def _set_up(
    request: Mapping[str, Any], surroundings: Surroundings, log_fd: int, work_dir: Path
) -> bool:
    """Set up streams, files, environment and limits; True when permission bits must be passed by."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(null)
    os.close(log_fd)
    _go_first_when_memory_ends()
    os.chdir(work_dir)
    sys.path[:] = request["path"]
    mapped = False
    if surroundings.own_view:
        mapped = _enter_view(request, surroundings, work_dir)
    os.environ.update({**request["environment"], "HOME": str(work_dir), "TMPDIR": str(work_dir)})
    os.environ["LOGNAME"] = "collage"  # some libraries ask for a name, and a child's own user has none
    tempfile.tempdir = str(work_dir)
    for name, value in request["rlimits"].items():
        number = getattr(resource, name, None)
        if number is not None:
            hard = resource.getrlimit(number)[1]
            limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
            # At the hard limit of processor time the kernel kills without saying why.
            spare = 5 if name == "RLIMIT_CPU" and hard == resource.RLIM_INFINITY else 0
            resource.setrlimit(number, (limit, limit + spare))
    return os.geteuid() == 0 and not mapped


def _enter_view(request: Mapping[str, Any], surroundings: Surroundings, work_dir: Path) -> bool:
    """Enter the child's view of files; True when all given files are its own there."""
    maps = surroundings.user_maps or {}
    root = (0, 0)
    shown = [Shown(path) for path in (*SYSTEM, "/sys")]
    shown += [Shown(path, owner=root) for path in interpreter_paths()]
    shown += [Shown(path, device=True) for path in devices(request["gpus"])]
    for entry in request["given"]:
        shown.append(Shown(entry["path"], entry["writable"], owner=tuple(entry["owner"])))
    mapped = enter(
        shown,
        str(work_dir),
        user_maps=maps,
        own_proc=surroundings.own_proc,
        all_mounts=surroundings.all_mounts,
    )
    for number in maps.values():
        os.close(number)
    return mapped and bool(maps)


def _give_up(request: Mapping[str, Any], passes_files: bool, end_fd: int) -> None:
    """Give up all rights, and end with the fork server."""
    give_up_privileges(request["user"], passes_files)
    linux.prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # After any change of user, which would clear it; then make sure that it was not too late.
    linux.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    reader = select.poll()
    reader.register(end_fd, 0)
    if reader.poll(0):
        os._exit(1)
    refuse_calls(memory_files=request["gpus"])


def _fork_worker(channel_fd: int, end_fd: int) -> None:
    """Return in the worker; here wait for it, tell how it ended, and end."""
    linux.prctl(_PR_SET_DUMPABLE, 0)  # the worker may be the same user
    worker = os.fork()
    if worker == 0:
        linux.prctl(_PR_SET_DUMPABLE, 1)
        os.setsid()
        linux.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    os.close(channel_fd)
    while True:
        pid, status = os.wait()
        if pid == worker:
            os.write(end_fd, str(os.waitstatus_to_exitcode(status)).encode())
            os._exit(0)


def _go_first_when_memory_ends() -> None:
    """Let the kernel kill this process before others when memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")


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

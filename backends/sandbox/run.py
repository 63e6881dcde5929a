"""Runs a function in a sacrificial child process, whose crash harms no other process.

    value = run_in_child(measure_once, request, limits=ChildLimits(timeout_s=30))

Each call has a child of its own, forked from a helper process (the *fork server*, see `child`). That
has numpy and our own modules loaded, and no runtime. The user's main module needs no guard. Calls may
come from any thread, several at a time, and from forked processes.

A child has its own session and process group, resource limits and `no_new_privs`. Its working
directory, HOME and TMPDIR is an empty folder that is removed afterward. Its environment has a few names
and the policy's settings. Where the owner is root it has a user of its own (`user`). Where the platform
allows that, it has no network and only the files that it was given (`landlock`). The kernel kills it
when the fork server or the owner dies. Its stdout and stderr go to a file, whose last lines are in the
failure's reason. Its results are decoded as plain data (`codec`).

Source: the fork server of Python's multiprocessing; pebble for the idea of one process per task.
"""

from __future__ import annotations

import json
import os
import pickle
import selectors
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, ParamSpec, TypeVar

from collage.backends.machine import process_policy
from collage.backends.sandbox.child import frame, in_child, send_message, split_frame
from collage.backends.sandbox.codec import OWN_PACKAGES, UnsafeValueError, decode
from collage.backends.sandbox.fork_server import ForkServer, fork_server, import_path
from collage.backends.sandbox.landlock import Given, granted, imported_code, more_writable
from collage.backends.sandbox.limits import ChildFailed, ChildLimits, FailureKind, Protections
from collage.backends.sandbox.native_output import one_line
from collage.backends.sandbox.usage.watch import LOOK_S, Excess, Watch, over_memory
from collage.partitioner.errors import CancelledError

__all__ = [
    "ChildFailed",
    "ChildLimits",
    "FailureKind",
    "in_child",
    "protections",
    "run_in_child",
    "send_message",
]

P = ParamSpec("P")
R = TypeVar("R")

_POLL_S = 0.05
_KILL_GRACE_S = 15.0  # on a busy machine the end of many processes takes time
_TAIL_BYTES = 4096
_LEAST_ADDRESS_BYTES = 4 << 30


def run_in_child(
    function: Callable[P, R],
    *args: Any,
    limits: ChildLimits | None = None,
    cancel: threading.Event | None = None,
    on_message: Callable[[Any], None] | None = None,
) -> R:
    """Call `function(*args)` in a child of its own and return what it returns.

    Args:
        function: a function of an importable module (not of `__main__`).
        args: anything that can be pickled.
        limits: what the child may use.
        cancel: when set, the child is killed within a tenth of a second.
        on_message: called in this thread with each value that the function gives to `send_message`.

    Returns:
        The result: plain data, numpy arrays, dataclasses of this project or the function's package.

    Raises:
        ChildFailed: the child did not return; no process of it is left.
        CancelledError: `cancel` was set; no process of it is left.
        ValueError: the function cannot be found again by the child.
        RuntimeError: called inside a child.
    """
    if in_child():
        raise RuntimeError("a sandboxed child may not start another one: call the function directly")
    if function.__module__ == "__main__" or "<" in function.__qualname__:
        raise ValueError(f"{function.__qualname__} must be a function of an importable module")
    task = pickle.dumps((function, args))
    package = function.__module__.partition(".")[0]
    limits = limits or ChildLimits()
    given = [*granted((args, limits.readable)), *more_writable(limits.writable), *imported_code()]
    run = _ChildCall(limits, OWN_PACKAGES | {package}, on_message, given)
    preload = function.__module__ if package in OWN_PACKAGES else None
    result: R = run.go(task, preload, cancel)
    return result


def protections() -> Protections:
    """What holds for children here (starts the fork server if there is none)."""
    return fork_server().protections


class _ChildCall:
    """One call: talks to the child and to the fork server until both are done."""

    def __init__(
        self,
        limits: ChildLimits,
        packages: frozenset[str],
        on_message: Callable[[Any], None] | None,
        given: list[Given],
    ) -> None:
        self._given = given
        self._limits = limits
        self._memory_bytes = limits.memory_bytes or process_policy.child_memory()
        self._watch: Watch | None = None
        self._excess: Excess | None = None
        self._packages = packages
        self._on_message = on_message
        self._channel: socket.socket
        self._status: socket.socket
        self._received = bytearray()
        self._outcome: tuple[bytes, bytes] | None = None
        self._exit: int | None = None
        self._over_limit = False  # the kernel ended it for its memory
        self._work_dir: str | None = None
        self._gone = False
        self._killed_for: FailureKind | None = None
        self._heard_at = 0.0

    def go(self, task: bytes, preload: str | None, cancel: threading.Event | None) -> Any:
        if cancel is not None and cancel.is_set():
            raise CancelledError("cancelled before a child process started")
        kills_before = _memory_kills()
        self._channel, child_channel = socket.socketpair()
        self._status, fork_server_status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with (
            self._channel,
            self._status,
            child_channel,
            fork_server_status,
            tempfile.TemporaryFile() as log,
        ):
            request = json.dumps(self._request(preload)).encode()
            fds = [child_channel.fileno(), fork_server_status.fileno(), log.fileno()]
            helper = fork_server()
            try:
                helper.send(request, fds)
            except OSError as error:  # it has just died: once more with a new one
                if isinstance(error, ConnectionError):
                    helper.close()  # it may need a moment to end, and must not be asked again
                helper = fork_server()
                helper.send(request, fds)
            child_channel.close()
            fork_server_status.close()
            try:
                self._talk(task, cancel)
            finally:
                self._end(helper)
                if self._exit is None and self._work_dir is not None:
                    # The fork server, which removes a child's folder, died or was killed.
                    shutil.rmtree(self._work_dir, ignore_errors=True)
            return self._conclude(log, kills_before)

    def _request(self, preload: str | None) -> dict[str, Any]:
        limits = self._limits
        cpu_s = limits.cpu_s
        if cpu_s is None:
            cpu_s = limits.timeout_s * (os.cpu_count() or 1) + 10
        rlimits = {
            "RLIMIT_CPU": int(cpu_s) + 1,
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_FSIZE": limits.file_bytes,
            "RLIMIT_NPROC": _tasks_now() + limits.processes,
            "RLIMIT_CORE": 0,
        }
        address_bytes = limits.address_bytes
        if address_bytes is None:
            # Much is reserved and never used.
            address_bytes = limits.memory_bytes or max(self._memory_bytes, _LEAST_ADDRESS_BYTES)
        if address_bytes:
            rlimits["RLIMIT_AS"] = address_bytes
        return {
            "preload": preload,
            "path": import_path(),
            "environment": dict(limits.environment),
            "rlimits": rlimits,
            "memory_bytes": self._memory_bytes,
            "processes": limits.processes,
            "user": limits.user,
            "gpus": limits.gpus,
            "given": [asdict(entry) for entry in self._given],
        }

    def _talk(self, task: bytes, cancel: threading.Event | None) -> None:
        """Send the task and read messages until there is an outcome or the child must be killed."""
        begin = self._heard_at = time.monotonic()
        channel, status = self._channel, self._status
        channel.setblocking(False)
        status.setblocking(False)
        to_send = memoryview(frame(b"T", task))
        channel_open = True
        while self._outcome is None and not self._gone:
            now = time.monotonic()
            left = begin + self._limits.timeout_s - now
            if self._limits.silence_s is not None:
                left = min(left, self._heard_at + self._limits.silence_s - now)
            if left <= 0:
                self._killed_for = "hang"
                return
            if cancel is not None and cancel.is_set():
                raise CancelledError("cancelled while a child process ran")
            self._excess = self._watch.look() if self._watch is not None else None
            if self._excess is not None:
                return
            wanted = {status: selectors.EVENT_READ}
            if channel_open:
                wanted[channel] = selectors.EVENT_READ | (selectors.EVENT_WRITE if to_send else 0)
            wait_s = min(left, _POLL_S if cancel is not None else LOOK_S)
            ready = _ready(wanted, wait_s)
            if ready.get(channel, 0) & selectors.EVENT_WRITE:
                try:
                    to_send = to_send[channel.send(to_send) :]
                except OSError:
                    to_send = memoryview(b"")
            if ready.get(channel, 0) & selectors.EVENT_READ:
                channel_open = self._read_channel()
            if status in ready:
                self._read_status()
                if self._gone:  # its last messages are still in the channel
                    while channel_open and self._outcome is None:
                        channel_open = self._read_channel()

    def _read_channel(self) -> bool:
        try:
            data = self._channel.recv(1 << 20)
        except BlockingIOError:
            return not self._gone
        except OSError:
            return False
        self._received += data
        self._heard_at = time.monotonic()
        if len(self._received) > self._limits.answer_bytes:
            raise ChildFailed("error", f"it sent more than {self._limits.answer_bytes} bytes at once")
        while self._outcome is None and (found := split_frame(self._received)) is not None:
            kind, content = found
            if kind != b"M":
                self._outcome = found
            elif self._on_message is not None:
                self._on_message(self._decode(content))
        return bool(data)

    def _read_status(self) -> None:
        try:
            data = self._status.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._gone = True
            return
        word = json.loads(data)
        if "exit" in word:
            self._exit = word["exit"]
            self._over_limit = word["memory_kills"] > 0
            self._gone = True
        else:
            self._work_dir = word["work_dir"]
            folders = [word["work_dir"], *(each.path for each in self._given if each.writable)]
            self._watch = Watch(word["pid"], folders, self._memory_bytes, self._limits.disk_bytes)

    def _end(self, helper: ForkServer) -> None:
        """End the child and its descendants."""
        deadline = time.monotonic() + _KILL_GRACE_S
        try:
            self._status.send(b"kill")
        except OSError:
            return
        while not self._gone:
            left = deadline - time.monotonic()
            if left <= 0:
                helper.kill()
                return
            if _ready({self._status: selectors.EVENT_READ}, left):
                self._read_status()

    def _conclude(self, log: IO[bytes], kills_before: int) -> Any:
        if self._outcome is not None and self._killed_for is None and self._excess is None:
            sort, content = self._outcome
            if sort == b"R":
                return self._decode(content)
            error = json.loads(content)
            reason = f"{error['type']}: {one_line(error['message'])}".rstrip(": ")
            if error["kind"] == "out_of_memory":
                reason += self._memory_hint()
            raise ChildFailed(error["kind"], reason, str(error["type"]), str(error["trace"]))
        tail = _tail(log)
        if self._excess is not None:
            kind: FailureKind = "out_of_memory" if self._excess.resource == "memory" else "out_of_disk"
            raise ChildFailed(kind, self._excess.reason, detail=tail)
        if self._over_limit:
            raise ChildFailed("out_of_memory", over_memory(None, self._memory_bytes), detail=tail)
        if self._killed_for == "hang":
            limits = (self._limits.timeout_s, self._limits.silence_s or self._limits.timeout_s)
            raise ChildFailed("hang", f"not done after {min(limits):g} s", detail=tail)
        raise _post_mortem(self._exit, tail, _memory_kills() > kills_before)

    def _memory_hint(self) -> str:
        return f"; its limit is {self._memory_bytes / (1 << 30):.3g} GiB ({process_policy.CHILD_MEMORY} sets it)"

    def _decode(self, content: bytes) -> Any:
        try:
            return decode(content, self._packages)
        except UnsafeValueError as error:
            raise ChildFailed("error", f"its answer cannot be trusted: {error}") from None


def _ready(wanted: Mapping[socket.socket, int], wait_s: float) -> dict[socket.socket, int]:
    """Which of the sockets can be read or written, after `wait_s` seconds at the most."""
    # Not select(): it fails for descriptors from 1024 on, which a server with many connections has.
    with selectors.PollSelector() as selector:
        for each, events in wanted.items():
            selector.register(each, events, each)
        return {key.data: events for key, events in selector.select(wait_s)}


def _post_mortem(code: int | None, tail: str, memory_kill: bool) -> ChildFailed:
    last = _last_words(tail)
    if code is None:
        return ChildFailed("killed", "its helper process was killed", detail=tail)
    if code >= 0:
        return ChildFailed("crash", f"ended with status {code} and without a result{last}", detail=tail)
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if -code == signal.SIGKILL:
        if memory_kill:
            return ChildFailed("out_of_memory", "killed by the kernel for lack of memory", detail=tail)
        return ChildFailed("killed", f"killed from outside by {name}", detail=tail)
    if -code == signal.SIGXCPU:
        return ChildFailed("hang", "used up its processor time", detail=tail)
    if "bad_alloc" in tail or "MemoryError" in tail:
        return ChildFailed("out_of_memory", f"{name}{last}", detail=tail)
    return ChildFailed("crash", f"{name}{last}", detail=tail)


def _last_words(tail: str) -> str:
    """The last line on stderr before the crash handler's listing."""
    lines = [line.strip() for line in tail.partition("Fatal Python error")[0].splitlines()]
    said = [line for line in lines if line]
    return f"; it said: {said[-1][:300]}" if said else ""


def _tail(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _TAIL_BYTES))
    return log.read(_TAIL_BYTES).decode("utf-8", "replace")


def _tasks_now() -> int:
    """Processes and threads on this machine now, of all users."""
    try:
        return int(Path("/proc/loadavg").read_text(encoding="utf-8").split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return 4096


def _memory_kills() -> int:
    """How many processes the kernel has killed for lack of memory since it started."""
    try:
        for line in Path("/proc/vmstat").read_text(encoding="utf-8").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0

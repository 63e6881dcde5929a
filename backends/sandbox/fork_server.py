"""The owner's side of the fork server: one helper process that forks children, started when needed.

A fork server belongs to the process that started it. It is replaced when it has died; a forked copy of
its owner starts one of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from collage.backends.machine import process_policy
from collage.backends.sandbox.limits import Protections
from collage.partitioner.errors import CollageError

_KEPT_ENVIRONMENT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_HOME",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
)
# Modules to import, and functions to call, in the fork server once instead of in each child.
_PRELOAD = (
    *("numpy", "ml_dtypes", "collage.backends.sandbox.codec", "collage.backends.contract"),
    "collage.backends.registry:warm_up",
)
_START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 5.0


class ForkServer:
    """This process's helper; see `collage.backends.sandbox.fork_loop.serve`."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        start = (
            "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
            "from collage.backends.sandbox.fork_loop import serve; "
            "serve(int(sys.argv[1]), json.loads(sys.argv[3]))"
        )
        kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-X", "utf8", "-c", start),
                    *(str(theirs.fileno()), json.dumps(import_path()), json.dumps(_PRELOAD)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**process_policy.CHILD_ENVIRONMENT, **kept},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # an interrupt at the terminal is for the owner alone
            )
        self._control = ours
        self._send_lock = threading.Lock()
        ours.settimeout(_START_TIMEOUT_S)
        hello = ours.recv(4096)
        if not hello:
            self.close()
            raise CollageError("the helper process for sandboxed children could not start (see stderr)")
        self.protections = Protections(**json.loads(hello))

    @property
    def alive(self) -> bool:
        """False when it has ended."""
        return self._process.poll() is None

    def send(self, request: bytes, fds: list[int]) -> None:
        """Ask for a child with these descriptors: channel, status, log."""
        with self._send_lock:
            socket.send_fds(self._control, [request], fds)

    def kill(self) -> None:
        """The last resort, when it does not answer; the kernel then kills its children."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # else a next call could still reach it
            self._process.wait(_END_TIMEOUT_S)

    def forget(self) -> None:
        """Close the socket in a forked copy of the owner, where it would keep the fork server alive."""
        self._control.close()
        self._process.returncode = 0  # it is not this process's child

    def close(self) -> None:
        """Let it end, and wait."""
        self._control.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


_lock = threading.Lock()
_current: ForkServer | None = None


def fork_server() -> ForkServer:
    """This process's fork server, started when there is none."""
    global _current
    with _lock:
        if _current is not None and not _current.alive:
            _current.close()
            _current = None
        if _current is None:
            _current = ForkServer()
        return _current


def _close_fork_server() -> None:
    global _current
    with _lock:
        if _current is not None:
            _current.close()
            _current = None


def _after_fork() -> None:
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        _current.forget()
        _current = None


atexit.register(_close_fork_server)
os.register_at_fork(after_in_child=_after_fork)


def import_path() -> list[str]:
    """Where the child finds modules: as here, with relative entries made absolute."""
    return [str(Path(entry).absolute()) for entry in sys.path if not entry.startswith("__editable__")]

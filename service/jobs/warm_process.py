"""Job processes that have loaded everything and wait for their request, so that jobs start at once."""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

# The server alone sends webhooks and traces and reaches the blob store; a job's request names its database.
_SECRETS = frozenset(
    {
        "COLLAGE_WEBHOOK_SECRET",
        "COLLAGE_DATABASE_URL",
        "COLLAGE_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    }
)


class Template:
    """The process that forks those of jobs (`job_template`).

    Args:
        cores: where it and they run; none means everywhere.
    """

    def __init__(self, cores: Sequence[int] = ()) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "collage.service.jobs.job_template"),
                    *(str(theirs.fileno()), ",".join(map(str, cores))),
                ],
                stdin=subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if name.upper() not in _SECRETS},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        """False when it has ended."""
        return self._process.poll() is None

    def fork(self, descriptors: Sequence[int]) -> None:
        """Ask for a process; one that has ended makes none, which the process's status tells."""
        rights = array.array("i", descriptors).tobytes()
        with contextlib.suppress(OSError):
            self._control.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])

    def close(self) -> None:
        """End it; processes that have a job go on."""
        self._control.close()
        self._process.kill()
        self._process.wait()


class WarmProcess:
    """One process of `job_process`; it starts its helper and then reads its request.

    Args:
        output: the file that gets what it prints.
        template: forks it.
    """

    def __init__(self, output: Path, template: Template) -> None:
        self.output = output
        read_end, write_end = os.pipe()
        self.messages, messages_end = os.pipe()
        self._status, status_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.requests = os.fdopen(write_end, "wb")
        self._pid: int | None = None
        self._code: int | None = None
        with output.open("wb") as file, status_end:
            template.fork([read_end, messages_end, file.fileno(), status_end.fileno()])
        os.close(read_end)
        os.close(messages_end)

    @property
    def pid(self) -> int | None:
        """Its number; None while it is not forked. Nobody waits for that here: a lease may end meanwhile."""
        self._hear(0.0)
        return self._pid

    @property
    def is_alive(self) -> bool:
        """False when it has ended."""
        self._hear(0.0)
        return self._code is None

    def wait(self, timeout_s: float | None = None) -> int | None:
        """How it ended, a signal as a negative number; None where it has not in this time."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while self._code is None:
            left_s = None if end is None else end - time.monotonic()
            if left_s is not None and left_s <= 0:
                break
            self._hear(left_s)
        return self._code

    def terminate(self) -> None:
        """Ask it to stop, if it is forked."""
        if (pid := self.pid) is not None:
            os.kill(pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it and its group, if it is forked."""
        if (pid := self.pid) is not None:
            # The group may be gone; children in groups of their own die with their parent.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def discard(self) -> None:
        """End a process that got no request."""
        self.close()
        os.close(self.messages)

    def close(self) -> None:
        """End it, and let its number go. One that is forked later finds all closed, and ends."""
        self.kill()
        if self._pid is not None:
            self.wait()
        with contextlib.suppress(BrokenPipeError):  # of what could not be written
            self.requests.close()
        self._status.close()
        self.output.unlink(missing_ok=True)

    def _hear(self, timeout_s: float | None) -> None:
        """Take in what its keeper says, for so long at most, or until it says something."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while self._code is None:
            poll = select.poll()  # not select(), which fails for descriptors from 1024 on
            poll.register(self._status, select.POLLIN)
            left_ms = None if end is None else max(0.0, end - time.monotonic()) * 1000
            if not poll.poll(left_ms):
                return
            said = self._status.recv(200)
            word = json.loads(said) if said else {"ended": -signal.SIGKILL}  # its keeper was killed
            self._pid = word.get("pid", self._pid)
            self._code = word.get("ended")
            if timeout_s is None:
                return


class WarmProcesses:
    """The processes that wait for jobs. Safe from several threads.

    Args:
        folder: for their output.
    """

    def __init__(self, folder: Path) -> None:
        self.cores: Sequence[int] = ()
        self._folder = folder
        self._lock = threading.Lock()
        self._waiting: list[WarmProcess] = []
        self._count = 0
        self._template: Template | None = None
        self._is_closed = False

    def take(self) -> WarmProcess:
        """A process for one job, and another one that waits in its place."""
        with self._lock:
            found = None
            while self._waiting and found is None:
                first = self._waiting.pop(0)
                if first.is_alive:
                    found = first
                else:
                    first.discard()
            found = found or self._start()
            self._refill()
            return found

    def fill(self, count: int) -> None:
        """Let so many wait, now and after each that is taken."""
        with self._lock:
            self._count = count
            self._refill()

    def close(self) -> None:
        """End those that wait; no more are started."""
        with self._lock:
            self._is_closed = True
            if self._template is not None:  # first, for what is not forked yet ends with it
                self._template.close()
            while self._waiting:
                self._waiting.pop().discard()

    def _refill(self) -> None:
        while len(self._waiting) < self._count and not self._is_closed:
            self._waiting.append(self._start())

    def _start(self) -> WarmProcess:
        if self._template is None or not self._template.is_alive:
            if self._template is not None:
                self._template.close()
            self._template = Template(self.cores)
        return WarmProcess(self._folder / f"output-{uuid.uuid4().hex}.txt", self._template)

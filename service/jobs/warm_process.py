"""Job processes that have loaded everything and wait for their request, so that jobs start at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path


class WarmProcess:
    """One process of `job_process`; it loads its libraries and then reads its request.

    Args:
        output: the file that gets what it prints.
        cores: where it runs; none means everywhere.
    """

    def __init__(self, output: Path, cores: Sequence[int] = ()) -> None:
        self.output = output
        self.messages, write_end = os.pipe()
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "collage.service.jobs.job_process", str(write_end)),
                    ",".join(map(str, cores)),
                ],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                pass_fds=(write_end,),
                start_new_session=True,
            )
        os.close(write_end)

    @property
    def is_alive(self) -> bool:
        """False when it has ended."""
        return self.process.poll() is None

    def discard(self) -> None:
        """End a process that got no request."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        os.close(self.messages)
        self.output.unlink(missing_ok=True)


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
        self._is_closed = False

    def take(self) -> WarmProcess:
        """A process for one job: one that waits, or else a new one."""
        with self._lock:
            while self._waiting:
                found = self._waiting.pop(0)
                if found.is_alive:
                    return found
                found.discard()
        return self._start()

    def fill(self, count: int) -> None:
        """Let so many wait."""
        with self._lock:
            while len(self._waiting) < count and not self._is_closed:
                self._waiting.append(self._start())

    def close(self) -> None:
        """End those that wait; no more are started."""
        with self._lock:
            self._is_closed = True
            while self._waiting:
                self._waiting.pop().discard()

    def _start(self) -> WarmProcess:
        return WarmProcess(self._folder / f"output-{uuid.uuid4().hex}.txt", self.cores)

"""The server's side of a job's process: gives it a request, reads its messages, and makes sure that it ends."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import threading
import time
from types import TracebackType
from typing import Any

import psutil

from collage.service.jobs.job_process import STOP_S, Request, request_line
from collage.service.jobs.warm_process import WarmProcess

# Beyond the time the process gives itself, before it is killed from outside.
_KILL_AFTER_S = STOP_S + 0.3
_OUTPUT_BYTES = 2000


class JobChild:
    """A running job. Use as a context manager: on leaving, the process and its group are gone.

    `warm` gets the request and belongs to this from now on; the process must write only into its
    output and its work folder. `was_loaded` says whether it had loaded its libraries by then, and
    `modules_before` how many modules these were.
    """

    def __init__(self, request: Request, warm: WarmProcess) -> None:
        try:
            line = request_line(request)
        except BaseException:  # what cannot be written leaves no process
            warm.discard()
            raise
        # The first message says that all is loaded, and waits in the pipe.
        poll = select.poll()  # not select(), which fails for descriptors from 1024 on
        poll.register(warm.messages, select.POLLIN)
        self.was_loaded = bool(poll.poll(0))
        self.modules_before = 0
        self._output = warm.output
        self._process = warm
        # A process that was killed by now reads nothing; its end is reported as usual.
        with contextlib.suppress(BrokenPipeError):
            warm.requests.write(line)
            warm.requests.flush()
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(
            target=self._read, args=(warm.messages,), name="job-messages", daemon=True
        )
        self._reader.start()
        self._kill_at: float | None = None

    @property
    def is_stopping(self) -> bool:
        """True once it was asked to stop."""
        return self._kill_at is not None

    def next_message(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message, or None when none came in time; the process's end is an `error` message."""
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            self._process.kill()
        try:
            message = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return None
        return message if message is not None else self._death()

    def is_suspended(self) -> bool:
        """True while the process is stopped (SIGSTOP)."""
        pid = self._process.pid
        with contextlib.suppress(psutil.NoSuchProcess):
            return pid is not None and psutil.Process(pid).status() == psutil.STATUS_STOPPED
        return False

    def ask_to_stop(self) -> None:
        """Cancel: it stops by itself, or is killed soon after."""
        self._kill_at = time.monotonic() + _KILL_AFTER_S
        self._process.terminate()

    def _death(self) -> dict[str, Any]:
        self._process.wait(timeout_s=1.0)  # it closed its messages, so it is about to end
        self._process.kill()
        code = self._process.wait()
        assert code is not None
        if self.is_stopping:
            return {"error": {"kind": "cancelled", "reason": "cancelled"}}
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        tail = self._output.read_bytes()[-_OUTPUT_BYTES:].decode("utf-8", "replace").strip()
        last = tail.splitlines()[-1] if tail else "it said nothing"
        return {"error": {"kind": "internal", "reason": f"the job's process ended with {how}: {last}"}}

    def _read(self, read_end: int) -> None:
        with os.fdopen(read_end, "r", encoding="utf-8", errors="replace") as messages:
            for line in messages:
                if not line.endswith("\n"):
                    break  # killed in the middle of a message
                message = json.loads(line)
                if "loaded" in message:
                    self.modules_before = message["loaded"]["modules"] if self.was_loaded else 0
                else:
                    self._messages.put(message)
        self._messages.put(None)

    def __enter__(self) -> JobChild:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.close()
        self._reader.join()

"""Starts a worker in an environment, and talks to it."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from collage.environments.work import Environment
from collage.partitioner.errors import CancelledError

# The environment's own collage serves where it can, so that its version is compared too. Else ours does,
# without the packages that lie beside it, and without a link, which a sandboxed child may not make.
_BOOT = """
import importlib.util, runpy, sys
ours = sys.argv.pop(1)
try:
    known = importlib.util.find_spec("collage.environments.worker") is not None
except ImportError:
    known = False
if not known:
    for name in [n for n in sys.modules if n.partition(".")[0] == "collage"]:
        del sys.modules[name]
    spec = importlib.util.spec_from_file_location(
        "collage", ours + "/__init__.py", submodule_search_locations=[ours]
    )
    sys.modules["collage"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["collage"])
runpy.run_module("collage.environments.worker", run_name="__main__", alter_sys=True)
"""
POLL_S = 0.1  # how often a wait looks whether it was cancelled
_TAIL_BYTES = 2000


def check_cancelled(cancel: threading.Event | None) -> None:
    """Raise CancelledError where `cancel` is set."""
    if cancel is not None and cancel.is_set():
        raise CancelledError("cancelled while another environment was looked at")


class WorkerError(Exception):
    """The process did not answer; the message says how it ended."""


class WorkerProcess:
    """A worker of an environment; ends with the block.

    Args:
        environment: where it runs.
        folder: for what it prints.
        timeout_s: for an answer.
        cancel: ends the wait for an answer when set.
    """

    def __init__(
        self,
        environment: Environment,
        folder: Path,
        timeout_s: float,
        cancel: threading.Event | None = None,
    ) -> None:
        self._timeout_s, self._cancel = timeout_s, cancel
        read, write = os.pipe()
        self._log = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  (closed by `close`)
        ours = Path(__file__).resolve().parents[1]
        python = environment.python or Path(sys.executable)
        variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        variables["PYTHONDONTWRITEBYTECODE"] = "1"
        if environment.python is None:
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [str(python), "-c", _BOOT, str(ours), str(write)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[write],
            env=variables,
        )
        os.close(write)
        self._answers = os.fdopen(read, "rb", buffering=0)
        self._received = b""

    def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to an order.

        Raises:
            WorkerError: the process ended, or did not answer in time.
            CancelledError: `cancel` was set.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise WorkerError(self._ending()) from None
        answer: dict[str, Any] = json.loads(self._line())
        return answer

    def _line(self) -> bytes:
        end_s = time.monotonic() + self._timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._received:
                check_cancelled(self._cancel)
                left_s = max(0.0, end_s - time.monotonic())
                if not selector.select(left_s if self._cancel is None else min(left_s, POLL_S)):
                    if time.monotonic() >= end_s:
                        raise WorkerError(f"hang: no answer within {self._timeout_s:g} s")
                    continue
                more = os.read(self._answers.fileno(), 1 << 16)
                if not more:
                    raise WorkerError(self._ending())
                self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _ending(self) -> str:
        status = self._process.wait()
        how = f"crash: signal {-status}" if status < 0 else f"ended with status {status}"
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _TAIL_BYTES))
        words = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return f"{how}: {words[-1]}" if words else how

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # an order that it did not read
                self._process.stdin.close()
        self._answers.close()
        self._log.close()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

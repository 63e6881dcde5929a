"""What the sandbox's tests do to a child: each is run by name, in a process of its own."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backends.sandbox import send_message


@dataclass(frozen=True)
class Pair:
    """A dataclass of a package that is not ours."""

    left: int
    right: np.ndarray


def echo(value: object) -> object:
    return value


def make_pair(left: int) -> Pair:
    return Pair(left, np.arange(left, dtype=np.float32))


def surroundings(path: Path) -> dict[str, object]:
    import resource

    return {
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "files": [str(p) for p in Path.cwd().iterdir()],
        "leads_session": os.getsid(0) == os.getpid() == os.getpgrp(),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "runtimes": [m for m in ("onnxruntime", "openvino", "MNN", "torch") if m in sys.modules],
        "exists": path.exists(),
        "user": os.getuid(),
        "pid": os.getpid(),
    }


def raise_error(text: str) -> None:
    raise RuntimeError(text)


def segfault() -> None:
    sys.stderr.write("about to read address zero\n")
    sys.stderr.flush()
    ctypes.string_at(0)


def abort() -> None:
    os.abort()


def leave(code: int) -> None:
    os._exit(code)


def spin(pid_file: Path | None = None) -> None:
    if pid_file is not None:
        pid_file.write_text(str(os.getpid()))
    while True:
        pass


def eat_memory() -> None:
    hoard = []
    while True:
        hoard.append(np.ones(1 << 24))


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang_with_grandchild(pid_file: Path, flee: bool) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=flee
    )
    pid_file.write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)


def leave_grandchild(pid_file: Path) -> str:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    pid_file.write_text(str(child.pid))
    return "done"


def report(count: int) -> str:
    for i in range(count):
        send_message({"step": i})
    return "all sent"


def send_a_function() -> object:
    return os.system


def fork_bomb(count: int) -> int:
    made = 0
    for _ in range(count):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
    return made


def connect(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return "connected"


def write_file(megabytes: int) -> None:
    with Path("large").open("wb") as file:
        for _ in range(megabytes):
            file.write(b"\0" * (1 << 20))

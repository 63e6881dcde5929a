"""What the sandbox's tests do to a child: each is run by name, in a process of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage.backends.sandbox.landlock import confine
from collage.backends.sandbox.run import run_in_child, send_message


@dataclass(frozen=True)
class Pair:
    """A dataclass of a package that is not ours."""

    left: int
    right: np.ndarray


@dataclass(frozen=True)
class Request:
    """Something with a path in it."""

    path: Path


def echo(value: object) -> object:
    return value


def make_pair(left: int) -> Pair:
    return Pair(left, np.arange(left, dtype=np.float32))


def pipes() -> list[int]:
    """The open descriptors that are pipes."""
    found = []
    for number in range(256):
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(number).st_mode):
                found.append(number)
    return found


def surroundings(path: Path) -> dict[str, object]:
    import resource

    return {
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "files": [str(p) for p in Path.cwd().iterdir()],
        "leads_session": os.getsid(0) == os.getpid() == os.getpgrp(),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "limits": {
            name: resource.getrlimit(getattr(resource, name))[0]
            for name in ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_NPROC")
        },
        "status": Path("/proc/self/status").read_text(encoding="utf-8"),
        "runtimes": [m for m in ("onnxruntime", "openvino", "MNN", "torch") if m in sys.modules],
        "exists": path.exists(),
        "user": os.getuid(),
        "pid": os.getpid(),
    }


def surroundings_for(seconds: float) -> dict[str, object]:
    time.sleep(seconds)
    return surroundings(Path("/"))


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
        pid_file.write_text(str(Path.cwd()), encoding="utf-8")
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
    pid_file.write_text(f"{os.getpid()} {child.pid}", encoding="utf-8")
    time.sleep(600)


def leave_grandchild(pid_file: Path) -> str:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    pid_file.write_text(str(child.pid), encoding="utf-8")
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


def read_text(where: str) -> str:
    return Path(where).read_text(encoding="utf-8")


def read_beside(path: Path, name: str) -> str:
    return (path.parent / name).read_text(encoding="utf-8")


def write_text(where: str) -> str:
    Path(where).write_text("was here", encoding="utf-8")
    return where


def write_in(folder: Path) -> str:
    return write_text(str(folder / "made"))


def name_threads(name: str) -> set[str]:
    """Name a thread that has started since, as CUDA's driver does: by truncating a file."""
    done = threading.Event()
    threading.Thread(target=done.wait).start()
    for thread in Path("/proc/self/task").iterdir():
        (thread / "comm").write_text(name, encoding="utf-8")
    names = {
        (t / "comm").read_text(encoding="utf-8").strip() for t in Path("/proc/self/task").iterdir()
    }
    done.set()
    return names


def signal_owner(pid: int) -> None:
    os.kill(pid, 0)


def owners_environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def copy_by_program(source: Path, folder: Path) -> None:
    subprocess.run(["/bin/cp", source, folder / "copy"], check=True)


def second(ignored: object, where: str) -> str:
    return read_text(where)


def can_be_confined() -> bool:
    return confine([], [])


def nest() -> object:
    return run_in_child(echo, 1)


def copy_beside(file: Path, folder: Path) -> list[Path]:
    return [Path(shutil.copyfile(each, folder / each.name)) for each in sorted(file.parent.iterdir())]

"""Forks the processes of jobs, each with all libraries loaded: `python -m collage.service.jobs.job_template`.

Libraries take seconds to load, and a fork takes milliseconds. So the *template* loads them once, has one
thread, opens nothing and never takes a job itself.

Each process of a job has a *keeper*, its parent, which tells the server its number and how it ended. The keeper reaps it
only when the server has closed the connection, so that its number belongs to nobody else until then.

Protocol: on the socket that the command line names, each packet asks for one fork. It has four descriptors: what the
process reads, its messages, its output, and a socket on which its keeper tells `{"pid": …}`, then `{"ended": …}`.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
import warnings
from typing import NoReturn

from collage.backends.machine.process_policy import apply_environment, go_before_server
from collage.service.jobs import job_process

_DESCRIPTORS = 4


def main() -> None:
    """Fork until the server is gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    # First: what is loaded from now on counts the cores and reads the environment once.
    if sys.argv[2]:
        os.sched_setaffinity(0, [int(core) for core in sys.argv[2].split(",")])
    apply_environment()
    go_before_server()
    importlib.import_module("collage.api")
    importlib.import_module("collage.service.http.problems")
    gc.collect()
    gc.freeze()  # forks share these pages until one writes
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a keeper ended
    # Threads of numpy's library are no danger: it ends them before a fork, and starts them again.
    warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
    while True:
        descriptors = _next(control)
        if descriptors is None:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            messages = _forked(*descriptors)
            job_process.main(messages)
            return
        for number in descriptors:
            os.close(number)


def _next(control: socket.socket) -> list[int] | None:
    """The descriptors of the next request; None when the server is gone."""
    size = array.array("i").itemsize * _DESCRIPTORS
    data, ancillary, _, _ = control.recvmsg(1, socket.CMSG_SPACE(size), socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    numbers = array.array("i")
    for _, _, content in ancillary:
        numbers.frombytes(content)
    return list(numbers)


def _forked(requests: int, messages: int, output: int, status: int) -> int:
    """Become a keeper for good, and return in the process that it keeps: where that sends its messages."""
    pid = os.fork()
    if pid != 0:
        for number in (requests, messages, output):
            os.close(number)
        _keep(pid, status)
    os.close(status)
    os.setsid()
    for number, place in ((requests, 0), (output, 1), (output, 2)):
        os.dup2(number, place)
    os.close(requests)
    os.close(output)
    return messages


def _keep(pid: int, status: int) -> NoReturn:
    """Tell the server of a process, and end it when the server has closed the connection."""
    with socket.socket(fileno=status) as server, contextlib.suppress(OSError):
        server.send(json.dumps({"pid": pid}).encode())
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        server.send(json.dumps({"ended": code}).encode())
        server.recv(1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os._exit(0)


if __name__ == "__main__":
    main()

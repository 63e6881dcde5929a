"""A child may do its worst: the caller gets a reason, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from collage.backends.sandbox.fork_server import fork_server
from collage.backends.sandbox.run import (
    ChildFailed,
    ChildLimits,
    protections,
    run_in_child,
)
from collage.partitioner.errors import CancelledError
from tests.backends.sandbox import child_tasks
from tests.processes import is_gone, wait_for


def _failure(function: Callable[..., object], *args: object, **options: object) -> ChildFailed:
    with pytest.raises(ChildFailed) as caught:
        run_in_child(function, *args, **options)  # type: ignore[arg-type]
    return caught.value


def _running() -> list[int]:
    """All processes below this one's fork server; a child has other numbers for its own."""
    helpers = [each for each in psutil.Process().children() if _serves(each)]
    return [each.pid for helper in helpers for each in helper.children(recursive=True)]


def _serves(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return "fork_loop" in " ".join(process.cmdline())
    return False


def test_the_value_comes_back() -> None:
    assert [run_in_child(child_tasks.echo, i) for i in range(3)] == [0, 1, 2]


def test_arrays_and_dataclasses_come_back() -> None:
    pair = run_in_child(child_tasks.make_pair, 3)
    assert pair.left == 3
    assert pair.right.dtype == np.float32
    np.testing.assert_array_equal(pair.right, [0, 1, 2])


def test_a_child_has_nothing_of_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    found = run_in_child(child_tasks.surroundings, tmp_path)
    environment, folder = found["environment"], found["folder"]
    assert isinstance(environment, dict)
    assert "SECRET_TOKEN" not in environment
    assert environment["HOME"] == environment["TMPDIR"] == folder
    assert found["files"] == []
    assert found["leads_session"]
    assert found["core"] == (0, 0)
    assert found["runtimes"] == []
    assert not Path(str(folder)).exists()


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        (child_tasks.segfault, "crash", "SIGSEGV; it said: about to read address zero"),
        (child_tasks.abort, "crash", "SIGABRT"),
        (child_tasks.kill_itself, "killed", "SIGKILL"),
        (child_tasks.send_a_function, "error", "not plain data"),
    ],
)
def test_crashes_have_a_reason(function: Callable[..., object], kind: str, words: str) -> None:
    failure = _failure(function)
    assert failure.kind == kind
    assert words in failure.reason


@pytest.mark.parametrize("code", [0, 3])
def test_leaving_without_a_result_is_a_crash(code: int) -> None:
    failure = _failure(child_tasks.leave, code)
    assert failure.kind == "crash"
    assert f"status {code}" in failure.reason


def test_an_exception_keeps_its_type_and_trace() -> None:
    failure = _failure(child_tasks.raise_error, "no kernel\nfor this")
    assert (failure.kind, failure.error_type) == ("error", "RuntimeError")
    assert failure.reason == "RuntimeError: no kernel for this"
    assert "raise_error" in failure.detail


def test_long_reason_keeps_both_ends() -> None:
    """ONNX Runtime's errors on CUDA name a kilobyte of C++ before the cause."""
    reason = _failure(child_tasks.raise_error, f"first {'template ' * 200}last").reason
    assert reason.startswith("RuntimeError: first") and reason.endswith("template last")
    assert len(reason) < 700


@pytest.mark.slow
def test_too_much_memory_is_said_to_be_that() -> None:
    failure = _failure(child_tasks.eat_memory, limits=ChildLimits(memory_bytes=1 << 30))
    assert failure.kind == "out_of_memory"


@pytest.mark.slow
def test_a_hang_ends_at_its_time() -> None:
    begin = time.monotonic()
    failure = _failure(child_tasks.spin, limits=ChildLimits(timeout_s=0.3))
    assert failure.kind == "hang"
    assert "0.3 s" in failure.reason
    assert time.monotonic() - begin < 20


@pytest.mark.slow
def test_processor_time_is_limited() -> None:
    failure = _failure(child_tasks.spin, limits=ChildLimits(cpu_s=0.1, timeout_s=20))
    assert failure.kind == "hang"
    assert "processor time" in failure.reason


def test_a_large_file_is_refused() -> None:
    failure = _failure(child_tasks.write_file, 4, limits=ChildLimits(file_bytes=1 << 20))
    assert failure.error_type == "OSError"


def test_cancel_kills_at_once(tmp_path: Path) -> None:
    cancel = threading.Event()
    pid_file = tmp_path / "pid"

    def cancel_it() -> None:
        wait_for(pid_file)
        cancel.set()

    threading.Thread(target=cancel_it).start()
    with pytest.raises(CancelledError):
        run_in_child(child_tasks.spin, pid_file, cancel=cancel)
    assert all(is_gone(pid) for pid in _running())


def test_nothing_starts_when_already_cancelled() -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(CancelledError):
        run_in_child(child_tasks.echo, 1, cancel=cancel)


@pytest.mark.slow
@pytest.mark.parametrize("flee", [False, True])
def test_grandchildren_die_with_a_hanging_child(tmp_path: Path, flee: bool) -> None:
    pid_file = tmp_path / "pids"
    limits = ChildLimits(timeout_s=1.0)
    assert _failure(child_tasks.hang_with_grandchild, pid_file, flee, limits=limits).kind == "hang"
    assert len(pid_file.read_text(encoding="utf-8").split()) == 2
    assert all(is_gone(pid) for pid in _running())


def test_grandchildren_die_with_a_finished_child(tmp_path: Path) -> None:
    assert run_in_child(child_tasks.leave_grandchild, tmp_path / "pid") == "done"
    assert all(is_gone(pid) for pid in _running())


def test_messages_come_in_order() -> None:
    got: list[object] = []
    assert run_in_child(child_tasks.report, 5, on_message=got.append) == "all sent"
    assert got == [{"step": i} for i in range(5)]


def test_answer_that_is_too_large_is_refused() -> None:
    limits = ChildLimits(answer_bytes=1 << 20)
    assert run_in_child(child_tasks.echo, "x" * 1000, limits=limits) == "x" * 1000
    failure = _failure(child_tasks.echo, "x" * (2 << 20), limits=limits)
    assert "it sent more than 1048576 bytes" in failure.reason


def test_an_error_in_on_message_leaves_no_child() -> None:
    def refuse(message: object) -> None:
        raise KeyError("no thanks")

    with pytest.raises(KeyError):
        run_in_child(child_tasks.report, 5, on_message=refuse)
    assert run_in_child(child_tasks.echo, 1) == 1


def test_the_network_is_cut_off_where_it_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if protections().network or protections().files:
            failure = _failure(child_tasks.connect, port)
            assert failure.error_type in ("OSError", "PermissionError")
        else:
            assert run_in_child(child_tasks.connect, port) == "connected"


def test_every_limit_is_set() -> None:
    limits = ChildLimits(
        memory_bytes=3 << 30, cpu_s=77, open_files=99, file_bytes=1 << 20, processes=55
    )
    found = run_in_child(child_tasks.surroundings, Path("/"), limits=limits)
    assert found["limits"].pop("RLIMIT_NPROC") > 55  # beyond what runs now
    assert found["limits"] == {
        "RLIMIT_AS": 3 << 30,
        "RLIMIT_CPU": 78,
        "RLIMIT_NOFILE": 99,
        "RLIMIT_FSIZE": 1 << 20,
    }
    assert "NoNewPrivs:\t1" in found["status"]


needs_root = pytest.mark.skipif(
    os.getuid() != 0 or not protections().own_users,
    reason="only root, allowed to change users, can do so",
)


@needs_root
@pytest.mark.slow
def test_a_child_of_root_is_a_user_of_its_own() -> None:
    with ThreadPoolExecutor(2) as pool:  # one after the other may have the same
        one, two = pool.map(lambda _: run_in_child(child_tasks.surroundings_for, 1.0), range(2))
    assert len({one["user"], two["user"], 0}) == 3
    status = dict(line.split(":\t", 1) for line in one["status"].splitlines() if ":\t" in line)
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(one["user"])}
    assert status["Groups"].strip() == ""
    if protections().no_capabilities:
        sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
        assert {int(status[name], 16) for name in sets} == {0}
    # The kernel counts processes of plain users only; the limit stops a fork bomb.
    failure = _failure(child_tasks.fork_bomb, 4000, limits=ChildLimits(processes=20))
    assert failure.error_type == "BlockingIOError"


@needs_root
def test_a_child_of_its_own_user_works_in_roots_folders(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o700)
    (locked / "model").write_text("model", encoding="utf-8")
    (locked / "model").chmod(0o600)
    out = locked / "out"
    out.mkdir(mode=0o700)
    assert run_in_child(child_tasks.read_beside, locked / "model", "model") == "model"
    assert run_in_child(child_tasks.write_in, out) == str(out / "made")
    run_in_child(child_tasks.copy_by_program, locked / "model", out)
    assert (out / "copy").read_text(encoding="utf-8") == "model"
    if protections().no_capabilities:
        assert (out / "made").stat().st_uid == 0  # what it makes is the owner's


@needs_root
def test_a_child_may_be_given_a_user() -> None:
    assert (
        run_in_child(child_tasks.surroundings, Path("/"), limits=ChildLimits(user=64001))["user"]
        == 64001
    )


def test_a_function_that_a_child_cannot_find_is_refused() -> None:
    with pytest.raises(ValueError, match="importable"):
        run_in_child(lambda: 1)


def test_a_child_starts_no_children_of_its_own() -> None:
    assert "RuntimeError: a sandboxed child" in _failure(child_tasks.nest).reason


def test_a_child_has_no_pipe_of_the_fork_server() -> None:
    assert run_in_child(child_tasks.pipes) == []


@pytest.mark.slow
def test_many_threads_at_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda i: run_in_child(child_tasks.echo, i), range(24))) == list(range(24))


def test_from_an_event_loop() -> None:
    async def main() -> object:
        return await asyncio.to_thread(run_in_child, child_tasks.echo, 7)

    assert asyncio.run(main()) == 7


@pytest.mark.slow
def test_helper_outlives_whatever_it_starts_for_a_child() -> None:
    """Also the short-lived processes that make a child's namespaces, killed as soon as they are seen."""
    helper = fork_server()
    (process,) = [each for each in psutil.Process().children() if _serves(each)]
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not listed.exists():
        pytest.skip("this kernel does not list children")
    done = threading.Event()

    def kill_all() -> None:
        while not done.is_set():
            for pid in listed.read_text(encoding="utf-8").split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    killer = threading.Thread(target=kill_all)
    killer.start()
    try:
        for _ in range(20):
            with contextlib.suppress(ChildFailed):
                run_in_child(os.getpid)
    finally:
        done.set()
        killer.join()
    assert fork_server() is helper and process.is_running()
    assert run_in_child(os.getpid) > 0
    assert all(is_gone(pid) for pid in _running())


@pytest.mark.slow
def test_killed_fork_server_is_replaced(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_failure, child_tasks.spin, pid_file)
        folder = Path(wait_for(pid_file))
        pids = _running()
        assert folder.exists() and pids
        fork_server().kill()
        assert running.result().kind == "killed"
    assert all(is_gone(pid) for pid in pids)
    assert not folder.exists()
    assert run_in_child(child_tasks.echo, 1) == 1


def test_process_with_thousands_of_open_files_starts_children() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip(f"this user may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert max(opened) > 1024  # where select() ends
        assert run_in_child(child_tasks.echo, 5) == 5
    finally:
        for number in opened:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

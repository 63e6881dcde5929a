"""Control groups of children: what the kernel does to them here, and which groups are taken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.backends.sandbox.usage import control_group
from collage.backends.sandbox.usage.control_group import ControlGroup, Groups, find_groups
from tests.backends.sandbox import attacks
from tests.processes import has_ended

_MIB = 1 << 20
_HERE = find_groups(ends_only=True)
needs_group = pytest.mark.skipif(
    _HERE is None, reason="no control group (v2) is handed to this process"
)
needs_memory = pytest.mark.skipif(
    _HERE is None or not _HERE.memory, reason="no control group (v2) with memory limits here"
)
needs_processes = pytest.mark.skipif(
    _HERE is None or not _HERE.processes, reason="no control group (v2) with limits on processes here"
)
_FORKER = "import os, sys\nos.write(int(sys.argv[1]), b'0')\n" + (
    "from tests.backends.sandbox.attacks import fork_without_end\nprint(fork_without_end(), flush=True)\n"
)
# Prints once it is inside, starts one more in a session of its own, and stays.
_MEMBER = (
    "import os, subprocess, sys, time\n"
    "os.write(int(sys.argv[1]), b'0')\n"
    "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(600)\n"
)


@pytest.fixture
def group() -> Iterator[ControlGroup]:
    assert _HERE is not None
    made = _HERE.make(64 * _MIB, 100)
    yield made
    made.remove()


def _member(group: ControlGroup) -> tuple[subprocess.Popen[str], psutil.Process]:
    """A process inside, and what it started."""
    enter = group.open()
    started = subprocess.Popen(
        [sys.executable, "-c", _MEMBER, str(enter)], pass_fds=[enter], stdout=subprocess.PIPE, text=True
    )
    os.close(enter)
    assert started.stdout is not None
    child = int(started.stdout.readline())
    started.stdout.close()
    return started, psutil.Process(child)


@needs_group
def test_a_group_ends_with_all_that_its_member_started(group: ControlGroup) -> None:
    member, child = _member(group)
    inside = (group.folder / "cgroup.procs").read_text(encoding="ascii").split()
    assert {str(member.pid), str(child.pid)} <= set(inside)
    group.remove()
    assert member.wait() == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while not has_ended(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not group.folder.exists()
    group.remove()  # once more does nothing


@needs_group
def test_groups_of_a_dead_fork_server_are_removed() -> None:
    assert _HERE is not None
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = _HERE.folder / f"collage-{dead.pid}-3"
    left.mkdir()
    own = _HERE.folder / f"collage-{os.getpid()}-{os.getpid()}"
    own.mkdir()
    try:
        find_groups(ends_only=True)
        assert not left.exists() and own.exists()
    finally:
        own.rmdir()


@needs_group
def test_groups_without_limits_are_taken_only_to_end_processes() -> None:
    found = find_groups(ends_only=False)
    assert found is None or found.memory or found.processes


def test_a_group_gets_the_limits_that_it_can_have(tmp_path: Path) -> None:
    assert Groups(tmp_path).limits(5 * _MIB, 20) == {}
    assert Groups(tmp_path, processes=True).limits(5 * _MIB, 20) == {"pids.max": "21"}
    memory = {"memory.max": str(5 * _MIB), "memory.swap.max": "0", "memory.oom.group": "1"}
    assert Groups(tmp_path, memory=True).limits(5 * _MIB, 20) == memory


@needs_memory
def test_kernel_ends_a_child_at_its_memory() -> None:
    with pytest.raises(ChildFailed) as caught:
        run_in_child(
            attacks.allocate_without_end, 1, limits=ChildLimits(memory_bytes=300 * _MIB, timeout_s=20)
        )
    assert caught.value.kind == "out_of_memory"
    assert "COLLAGE_CHILD_MEMORY_BYTES" in caught.value.reason


@needs_processes
def test_a_group_has_no_more_processes_than_its_limit() -> None:
    assert _HERE is not None
    group = _HERE.make(1 << 30, 20)
    try:
        enter = group.open()
        forker = subprocess.Popen(
            [sys.executable, "-c", _FORKER, str(enter)],
            pass_fds=[enter],
            stdout=subprocess.PIPE,
            text=True,
        )
        os.close(enter)
        assert forker.stdout is not None
        assert forker.stdout.readline() == "20\n"
    finally:
        group.remove()
    forker.communicate()


def test_kills_of_the_kernel_are_counted(tmp_path: Path) -> None:
    assert ControlGroup(tmp_path).memory_kills() == 0
    (tmp_path / "memory.events").write_text("low 0\nmax 7\noom 2\noom_kill 3\n", encoding="ascii")
    assert ControlGroup(tmp_path).memory_kills() == 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
def test_only_groups_that_were_handed_over_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "unit" / "server"
    own.mkdir(parents=True)
    monkeypatch.setattr(control_group, "_own_groups", lambda: iter([(tmp_path, own)]))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert list(control_group._given()) == []
    os.setxattr(own.parent, "user.delegate", b"1")
    assert list(control_group._given()) == [own.parent]

"""Children of scripts and of workers; none outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from collage.backends.sandbox.run import run_in_child
from tests.backends.sandbox import child_tasks
from tests.processes import is_gone, wait_for

_SCRIPT = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from collage.backends.sandbox.run import run_in_child
from collage.backends.sandbox.fork_server import fork_server
from collage.partitioner.errors import CancelledError
from tests.backends.sandbox import child_tasks
print(run_in_child(child_tasks.echo, "no guard needed"), flush=True)
if len(sys.argv) > 1:
    run_in_child(child_tasks.hang_with_grandchild, Path(sys.argv[1]), True)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(_SCRIPT.format(path=[str(Path(__file__).parents[3])]), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_plain_script_needs_no_guard(script: Path) -> None:
    done = subprocess.run([sys.executable, script], capture_output=True, encoding="utf-8", timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "no guard needed\n", "")


@pytest.mark.chaos
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_owner(script: Path, tmp_path: Path, number: int) -> None:
    pid_file = tmp_path / "pids"
    owner = subprocess.Popen([sys.executable, script, pid_file], stdout=subprocess.DEVNULL)
    wait_for(pid_file)
    pids = [child.pid for child in psutil.Process(owner.pid).children(recursive=True)]
    assert len(pids) >= 3  # the helper, the child, what that started
    os.kill(owner.pid, number)
    owner.wait()
    assert all(is_gone(pid) for pid in pids)


@pytest.mark.slow
def test_from_a_dask_worker() -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        tasks = [client.submit(run_in_child, child_tasks.echo, i) for i in range(4)]
        assert client.gather(tasks) == [0, 1, 2, 3]

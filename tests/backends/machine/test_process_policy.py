"""Runtimes leave the caller as it was, and leave the cores alone between calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collage.backends.contract import Available
from collage.backends.machine import process_policy
from collage.backends.registry import backends
from collage.backends.sandbox.run import run_in_child
from tests.backends.machine.policy_tasks import manners

_RUNTIMES = [
    name
    for name in ("onnxruntime", "openvino", "mnn", "ncnn")
    if name in backends() and isinstance(backends()[name].probe(), Available)
]
pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="affinity is a matter of Linux"
)


@pytest.mark.slow
@pytest.mark.parametrize("name", _RUNTIMES)
def test_a_runtime_leaves_no_trace_in_its_caller(name: str) -> None:
    found = run_in_child(manners, name)
    assert found.affinity_kept
    assert found.denormals_kept
    # A worker that spins after the run burns 20 to 50 of these 50 ms, of a core that the next
    # runtime needs.
    assert found.burned_ms < 5


@pytest.mark.slow
@pytest.mark.skipif(process_policy.cores_given() < 2, reason="with one core nobody spins")
def test_the_trap_is_still_there() -> None:
    """ONNX Runtime's own default spins; when this fails, the option may not be needed any more."""
    assert run_in_child(manners, "onnxruntime -spinning=always").most_burned_ms > 5


def test_the_callers_affinity_is_put_back() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(RuntimeError), process_policy.caller_kept():
        os.sched_setaffinity(0, {min(before)})
        raise RuntimeError("creation failed")
    assert os.sched_getaffinity(0) == before


def test_the_environment_is_set_where_the_user_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.delenv("KMP_BLOCKTIME", raising=False)
    process_policy.apply_environment()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    assert os.environ["KMP_BLOCKTIME"] == "0"


def test_threads_follow_the_affinity() -> None:
    before = os.sched_getaffinity(0)
    with process_policy.caller_kept():
        os.sched_setaffinity(0, {min(before)})
        assert process_policy.default_threads() == 1
    assert 1 <= process_policy.default_threads() <= len(before)


def test_memory_is_that_of_the_machine_or_less() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < process_policy.memory_given() <= total


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", None), ("150000 100000", 1.5), ("5000 100000", 1.0)]
)
def test_quotas_of_containers(
    text: str, cores: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(text, encoding="utf-8")
    monkeypatch.setattr(process_policy, "_groups", lambda controller: (tmp_path,))
    assert process_policy._quota() == cores


@pytest.mark.parametrize(
    ("quotas", "cores"), [((None, 3.5, 8.0), 3.5), ((2.0, 3.5, None), 2.0), ((0.5, None, None), 1.0)]
)
@pytest.mark.parametrize("version", [1, 2])
def test_least_quota_of_the_groups_around_counts(
    quotas: tuple[float | None, ...],
    cores: float,
    version: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As that of a service of systemd, or of its slice."""
    folders = [tmp_path / str(i) for i in range(len(quotas))]
    for folder, quota in zip(folders, quotas, strict=True):
        folder.mkdir()
        if version == 2:
            limit = "max" if quota is None else f"{quota * 1e5:.0f}"
            (folder / "cpu.max").write_text(f"{limit} 100000\n", encoding="utf-8")
        else:
            limit = "-1" if quota is None else f"{quota * 1e5:.0f}"
            (folder / "cpu.cfs_quota_us").write_text(f"{limit}\n", encoding="utf-8")
            (folder / "cpu.cfs_period_us").write_text("100000\n", encoding="utf-8")
    monkeypatch.setattr(process_policy, "_groups", lambda controller: tuple(folders))
    assert process_policy._quota() == cores


def test_memory_is_what_the_control_group_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "server.slice" / "collage.service"
    own.mkdir(parents=True)
    for folder, limit, used in ((own.parent, "3000000000", 2500000000), (own, "max", 100)):
        (folder / "memory.max").write_text(f"{limit}\n", encoding="utf-8")
        (folder / "memory.current").write_text(f"{used}\n", encoding="utf-8")
        (folder / "memory.stat").write_text("anon 1\ninactive_file 1000000000\n", encoding="utf-8")
    groups = (own, own.parent, tmp_path)
    monkeypatch.setattr(process_policy, "_groups", lambda controller: groups)
    assert process_policy.memory_allowed() == 3_000_000_000
    assert process_policy.memory_left() == 1_500_000_000
    monkeypatch.delenv(process_policy.CHILD_MEMORY, raising=False)
    assert process_policy.child_memory() == 2_250_000_000


@pytest.mark.parametrize("controller", ["memory", "cpu"])
def test_control_groups_of_this_process_are_there(controller: str) -> None:
    for folder in process_policy._groups(controller):
        assert folder.is_dir()
        assert folder.is_relative_to("/sys/fs/cgroup")


def test_process_of_a_job_ends_before_its_server() -> None:
    program = (
        "from collage.backends.machine.process_policy import go_before_server\n"
        "go_before_server()\n"
        "print(open('/proc/self/oom_score_adj').read())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    own = int(Path("/proc/self/oom_score_adj").read_text(encoding="utf-8"))
    assert own < int(done.stdout) < 1000

"""What a machine protects is said in words; one child's limits come from the machine and the settings."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import onnx
import onnx.parser
import pytest

from collage.api import tune
from collage.backends.machine import process_policy
from collage.backends.sandbox.limits import Protections
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.partitioner.errors import BadInputError, ModelError
from tests.backends.sandbox import attacks, child_tasks

_ALL = Protections(
    network=True,
    own_users=True,
    as_root=True,
    own_view=True,
    no_capabilities=True,
    files=True,
    calls=True,
    group=True,
    group_memory=True,
    group_processes=True,
)
# Each trip adds 4 MiB to an output, and there are 2**60 of them.
_ENDLESS = """
    <ir_version: 10, opset_import: ["" : 18]>
    endless (float[1024,1024] x) => (float[N,1024,1024] y)
    <int64 trips = {1152921504606846976}, bool go = {1}> {
        y = Loop (trips, go) <body = inside (int64 i, bool more) => (bool on, float[1024,1024] part) {
            on = Identity (more)
            part = Add (x, x)
        }>
    }
"""


def test_all_protections_hold_in_one_line() -> None:
    assert _ALL.missing() is None
    assert "no capabilities" in _ALL.holding() and "Landlock" in _ALL.holding()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("network", "no way to cut off the network"),
        ("own_users", "they are root like this process: start it as another user"),
        ("own_view", "no namespaces for files and processes"),
        ("no_capabilities", "pass by permission bits of files"),
        ("files", "no Landlock"),
        ("calls", "no seccomp filter"),
    ],
)
def test_missing_protection_is_said(name: str, said: str) -> None:
    found = replace(_ALL, **{name: False})
    assert said in (found.missing() or "")
    assert len(found.holding()) < len(_ALL.holding())


def test_what_limits_memory_is_said() -> None:
    assert "limit of the kernel on memory" in _ALL.holding() and "watched" not in _ALL.holding()
    plain = replace(_ALL, group=False, group_memory=False, group_processes=False)
    assert "memory that is watched" in plain.holding() and "kernel" not in plain.holding()
    assert plain.missing() is None


def test_plain_user_lacks_no_user_of_its_own() -> None:
    assert replace(_ALL, own_users=False, as_root=False).missing() is None


def test_child_memory_leaves_a_part_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(process_policy.CHILD_MEMORY, raising=False)
    given = process_policy.memory_allowed()
    assert process_policy.child_memory() == given * 3 // 4
    found = run_in_child(child_tasks.surroundings, Path("/"))
    limits = found["limits"]
    assert isinstance(limits, dict)
    assert limits["RLIMIT_AS"] == max(given * 3 // 4, 4 << 30)


@pytest.mark.slow
def test_child_memory_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(process_policy.CHILD_MEMORY, str(100 << 20))
    with pytest.raises(ChildFailed) as caught:
        run_in_child(attacks.allocate_without_end, 1)
    assert caught.value.kind == "out_of_memory"
    assert "its limit is 0.0977 GiB (COLLAGE_CHILD_MEMORY_BYTES sets it)" in caught.value.reason


@pytest.mark.parametrize("text", ["", "0", "-1", "8G"])
def test_wrong_setting_of_memory_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(process_policy.CHILD_MEMORY, text)
    with pytest.raises(BadInputError, match="give a number of bytes"):
        process_policy.child_memory()


@pytest.mark.slow
def test_address_space_that_is_used_up_names_the_limit() -> None:
    with pytest.raises(ChildFailed) as caught:
        run_in_child(child_tasks.eat_memory, limits=ChildLimits(memory_bytes=1 << 30))
    assert caught.value.kind == "out_of_memory"
    assert "limit is 1 GiB" in caught.value.reason


def test_folder_where_python_started_is_not_software() -> None:
    """`python -m` puts the current folder on the path; a server may start in a home folder or in /."""
    file = Path.cwd() / "pyproject.toml"
    assert file.exists()
    with pytest.raises(ChildFailed) as caught:
        run_in_child(child_tasks.read_text, str(file))
    assert caught.value.error_type in ("PermissionError", "FileNotFoundError")


def test_kernel_kills_a_child_before_its_owner() -> None:
    assert run_in_child(child_tasks.read_text, "/proc/self/oom_score_adj").strip() == "1000"
    assert int(Path("/proc/self/oom_score_adj").read_text(encoding="utf-8")) < 1000


@pytest.mark.slow
def test_endless_loop_ends_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(process_policy.CHILD_MEMORY, str(1 << 30))
    path = tmp_path / "endless.onnx"
    onnx.save(onnx.parser.parse_model(_ENDLESS), path)
    database = f"sqlite:///{tmp_path / 'costs.db'}"
    with pytest.raises(ModelError, match="its limit is 1 GiB"):
        tune(path, ["onnxruntime"], database=database)
    assert os.getpid()  # this process goes on

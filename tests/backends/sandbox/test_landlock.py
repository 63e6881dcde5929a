"""A child sees the files that it was given, and no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from tests.backends.sandbox import child_tasks

pytestmark = pytest.mark.skipif(
    not run_in_child(child_tasks.can_be_confined), reason="this kernel has no Landlock"
)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "secret").write_text("password", encoding="utf-8")
    return folder / "secret"


def _refused(function: object, *args: object, gpus: bool = False) -> bool:
    """True when the child saw no such file, or was not allowed to open it."""
    with pytest.raises(ChildFailed) as caught:
        run_in_child(function, *args, limits=ChildLimits(gpus=gpus))  # type: ignore[arg-type]
    return caught.value.error_type in ("PermissionError", "FileNotFoundError", "ProcessLookupError")


def test_other_files_are_out_of_reach(secret: Path, tmp_path: Path) -> None:
    assert _refused(child_tasks.read_text, str(secret))
    assert _refused(child_tasks.write_text, str(tmp_path / "new"))
    assert _refused(child_tasks.write_text, str(secret))
    assert secret.read_text(encoding="utf-8") == "password"
    assert not (tmp_path / "new").exists()


def test_links_lead_nowhere_else(secret: Path, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / "model").write_text("model", encoding="utf-8")
    (given / "link").symlink_to(secret)
    assert _refused(child_tasks.read_beside, given / "model", "link")
    assert _refused(child_tasks.read_beside, given / "model", "../elsewhere/secret")


def test_landlock_child_can_use_the_files_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("model", encoding="utf-8")
    (tmp_path / "weights").write_text("weights", encoding="utf-8")
    assert run_in_child(child_tasks.read_beside, tmp_path / "model", "weights") == "weights"
    folder = tmp_path / "folder"
    folder.mkdir()
    assert run_in_child(child_tasks.write_in, folder) == str(folder / "made")
    assert (folder / "made").read_text(encoding="utf-8") == "was here"
    limits = ChildLimits(writable=(tmp_path,))
    run_in_child(child_tasks.write_text, str(tmp_path / "new"), limits=limits)
    run_in_child(child_tasks.write_text, "in its own folder")


def test_paths_inside_arguments_count(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("model", encoding="utf-8")
    nested = {"request": [child_tasks.Request(tmp_path / "model")]}
    assert run_in_child(child_tasks.second, nested, str(tmp_path / "model")) == "model"


def test_other_processes_are_out_of_reach() -> None:
    assert _refused(child_tasks.owners_environment, os.getpid())
    assert _refused(child_tasks.signal_owner, os.getpid())


def test_landlock_child_may_name_its_own_threads_alone() -> None:
    assert _refused(child_tasks.name_threads, "named")
    limits = ChildLimits(gpus=True)
    assert run_in_child(child_tasks.name_threads, "named", limits=limits) == {"named"}
    assert _refused(child_tasks.write_text, f"/proc/{os.getpid()}/comm", gpus=True)

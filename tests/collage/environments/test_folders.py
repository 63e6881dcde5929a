"""A sandboxed process is given the folders that an interpreter imports from."""

from __future__ import annotations

from pathlib import Path

from collage.environments.environment import _files_in


def test_folder_without_a_file_of_its_own_gives_its_packages(tmp_path: Path) -> None:
    """Else the child would import the version that is installed elsewhere, and say that nothing changed."""
    files = [
        tmp_path / name for name in ("one/__init__.py", "space/two/__init__.py", "space/three/a.py")
    ]
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    (tmp_path / "empty").mkdir()
    assert set(_files_in([tmp_path / "absent", tmp_path])) == set(files)


def test_folder_with_a_file_of_its_own_gives_all_below_it(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    for name in ("module.py", "one/__init__.py"):
        (tmp_path / name).touch()
    assert _files_in([tmp_path, tmp_path / "one"]) == (tmp_path / "module.py",)

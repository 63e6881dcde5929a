"""A sandboxed process is given the folders that an interpreter imports from, or the user is told how."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage.environments.environment import _files_in
from collage.partitioner.errors import BadInputError


def test_folder_without_a_file_of_its_own_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    """Else the child would import the version that is installed elsewhere, and say that nothing changed."""
    (tmp_path / "my packages" / "onnxruntime").mkdir(parents=True)
    empty = tmp_path / "empty"
    empty.mkdir()
    folder = tmp_path / "my packages"
    with pytest.raises(BadInputError, match=r"touch '.*my packages/module.py'"):
        _files_in([empty, folder, tmp_path / "absent"])
    (folder / "module.py").touch()
    assert _files_in([empty, folder, folder / "onnxruntime"]) == (folder / "module.py",)

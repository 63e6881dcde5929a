"""What is no Python interpreter is refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage.environments.environment import environment_of
from collage.partitioner.errors import BadInputError


@pytest.mark.parametrize("said", ["", "echo a", "echo 5", "echo '[5]'", "printf '\\377'", "exit 3"])
def test_a_program_that_is_no_interpreter_is_refused(tmp_path: Path, said: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{said}\n", encoding="utf-8")
    python.chmod(0o755)
    with pytest.raises(BadInputError, match="is no Python interpreter"):
        environment_of(python)


def test_a_folder_is_no_interpreter(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="is no Python interpreter"):
        environment_of(tmp_path)

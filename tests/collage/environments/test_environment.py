"""What is no Python interpreter is refused with a sentence."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from collage.environments.environment import environment_of
from collage.partitioner.errors import BadInputError, CancelledError


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


@pytest.mark.slow
@pytest.mark.parametrize("answers", [False, True])
def test_a_look_at_an_interpreter_can_be_cancelled(tmp_path: Path, answers: bool) -> None:
    """One that says nothing, and one that tells its folders and then not what it has."""
    python, begun = tmp_path / "python", tmp_path / "begun"
    first = f"if [ ! -e {begun} ]; then touch {begun}; echo '[]'; exit; fi\n" if answers else ""
    python.write_text(f"#!/bin/sh\n{first}touch {begun}; exec sleep 60\n", encoding="utf-8")
    python.chmod(0o755)
    cancel = threading.Event()
    threading.Timer(1.0, cancel.set).start()
    begin_s = time.monotonic()
    with pytest.raises(CancelledError):
        environment_of(python, cancel)
    assert begun.exists() and 0.9 < time.monotonic() - begin_s < 20

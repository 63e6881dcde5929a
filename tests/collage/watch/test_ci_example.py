"""The script of docs/watch.md for CI: it passes on an equal environment and fails on a regression."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.collage.diagnosis.conftest import long_model
from tests.collage.environments.wrappers import ROOT, interpreter

pytestmark = pytest.mark.slow


def script() -> str:
    """The example as it stands in the page."""
    text = (ROOT / "docs/watch.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return found


def run(folder: Path, python: Path) -> subprocess.CompletedProcess[str]:
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    program = commands / "collage"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m collage "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_DATA_HOME": str(folder / "data"),
        "NEXT_PYTHON": str(python),
    }
    return subprocess.run(
        ["sh", "-c", script()],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=500,
    )


def test_the_example_tunes_and_fails_on_a_regression(tmp_path: Path) -> None:
    onnx.save(long_model(20), tmp_path / "model.onnx")
    same = run(tmp_path, interpreter(tmp_path, "same", {}))
    assert same.returncode == 0, same.stdout + same.stderr
    assert 'failures="0"' in (tmp_path / "watch.xml").read_text(encoding="utf-8")
    broken = tmp_path / "broken" / "onnxruntime"
    broken.mkdir(parents=True)
    text = "raise ImportError('this version is broken')"
    # By a file that lies in it a sandboxed child is given a folder of packages.
    (broken.parent / "module.py").touch()
    (broken / "__init__.py").write_text(text, encoding="utf-8")
    done = run(tmp_path, interpreter(tmp_path, "next", {}, [broken.parent]))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "failed" in done.stdout and "broken" in done.stdout

"""Interpreters that stand for other environments: the same Python with other variables."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def interpreter(
    folder: Path, name: str, variables: Mapping[str, str], search: Sequence[Path] = ()
) -> Path:
    """A program that starts this Python with these variables, in a folder of its own."""
    home = folder / name
    home.mkdir()
    python = home / "python"
    paths = ":".join(map(str, [*search, ROOT]))
    exports = {"PYTHONPATH": paths, **variables}
    lines = [f"export {key}={shlex.quote(value)}" for key, value in exports.items()]
    text = "\n".join(["#!/bin/sh", *lines, f'exec {shlex.quote(sys.executable)} "$@"', ""])
    python.write_text(text, encoding="utf-8")
    python.chmod(0o755)
    return python

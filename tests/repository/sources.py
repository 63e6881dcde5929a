"""The repository's Python files, each parsed once per process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("partitioner", "backends", "cost_db", "collage", "service")
FOLDERS = (*PACKAGES, "tests", "benchmarks")


@cache
def files(folder: str) -> tuple[Path, ...]:
    """The Python files of a folder of the repository, sorted."""
    return tuple(sorted((ROOT / folder).rglob("*.py")))


def named(path: Path) -> str:
    """The path as it stands in the repository."""
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    """The file's syntax tree: read it only, it is shared."""
    return ast.parse(path.read_text(encoding="utf-8"))

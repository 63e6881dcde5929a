"""Every import names `collage`: a bare `backends` would be a second copy of the package, or a user's folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("service", "partitioner", "backends", "cost_db")
FOLDERS = (
    "collage",
    *LINKED,
    "tests",
    "benchmarks",
    "docs",
    "docker",
    "scripts",
    "requirements",
    ".ci",
)
SUFFIXES = {
    ".py",
    ".md",
    ".toml",
    ".yaml",
    ".yml",
    ".json",
    ".ini",
    ".mako",
    ".txt",
    ".html",
    ".sh",
    "",
}

_PACKAGE = rf"(?:{'|'.join(LINKED)})(?![\w-])"
# Also within strings and code blocks: programs for children, commands, module names of the registry.
_BARE = re.compile(
    rf"""
      (?P<bare> \bfrom[ ]+{_PACKAGE}[\w.]*[ ]+import\b )
    | \bfrom[ ]+[\w.]+[ ]+import\b  # of a longer name, whatever is imported from it
    | (?P<plain> (?<![\w.])import[ ]+{_PACKAGE} )
    | (?P<run> \B-m["',\s]+{_PACKAGE} )
    | (?P<call> \b(?:import_module|importorskip|patch|setattr)\(\s*["']{_PACKAGE} )
    """,
    re.VERBOSE,
)
_MODULES = "|".join(
    rf"{name}\.(?:{'|'.join(sorted({path.stem for path in (ROOT / name).iterdir()} - {'__init__'}))})"
    for name in LINKED
)
# A quoted module, alone or with a name in it; `backends.md` is a file.
_QUOTED = re.compile(rf"""["'`](?P<quoted> (?:{_MODULES})(?:[.:][\w.:]+)? )["'`]""", re.VERBOSE)


def bare_names(text: str) -> list[str]:
    """Places where a text names a package of the repository without `collage.` before it."""
    return [
        found[0] for pattern in (_BARE, _QUOTED) for found in pattern.finditer(text) if found.lastgroup
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import backends",
        "import backends.contract as contract",
        "from service import app",
        "    from partitioner.graph.model import Model",
        "program = 'import numpy; import cost_db'",
        '"import service\\n"',
        "python -m service.health_check",
        '["python", "-m", "service.container"]',
        'import_module("backends.mnn")',
        '"mnn": "backends.mnn.backend:MNNBackend"',
        "is in `cost_db.costs.row`",
    ],
)
def test_bare_names_in_a_text_are_found(text: str) -> None:
    assert bare_names(text)


@pytest.mark.parametrize(
    "text",
    [
        "import collage.backends",
        "from collage.service import app",
        "from collage.backends.registry import backends, options_of",
        "from .partitioner import x",
        "python -m collage.service.health_check",
        '"collage.backends.mnn.backend:MNNBackend"',
        "see `backends.md` and `partitioner/graph/model.py`",
        "import service_tools",
        "import partitioner-tools",
    ],
)
def test_full_names_in_a_text_are_no_finding(text: str) -> None:
    assert not bare_names(text)


@pytest.mark.parametrize("folder", (".", *FOLDERS))
def test_repository_has_no_bare_names(folder: str) -> None:
    files = (ROOT / folder).glob("*") if folder == "." else (ROOT / folder).rglob("*")
    for path in files:
        unread = path == Path(__file__) or path.suffix not in SUFFIXES or "results" in path.parts
        if unread or not path.is_file() or path.stat().st_size > 1_000_000:
            continue
        found = bare_names(path.read_text(encoding="utf-8"))
        assert not found, f"{path.relative_to(ROOT)}: {found}; write `collage.` before it"

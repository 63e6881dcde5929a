"""The layout of the repository: small files and folders, tests that mirror packages, short names."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from collage.backends.registry import _BUILT_IN
from tests.repository.sources import FOLDERS, PACKAGES, ROOT, files, named, parsed

MOST_LINES, MOST_MODULES, LONGEST_NAME = 400, 13, 70
# Tests of a whole that is no package: pages in a browser, and a server with everything in it.
_OWN_FOLDERS = {"service/pages", "service/system"}


def _folders(top: Path) -> Iterator[Path]:
    """The folder and those below that have modules; a link is a package of its own."""
    yield top
    for path in sorted(top.iterdir()):
        if path.is_dir() and not path.is_symlink() and any(path.glob("*.py")):
            yield from _folders(path)


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_are_small_and_have_docstrings(folder: str) -> None:
    for path in files(folder):
        tree = parsed(path)
        assert not tree.body or ast.get_docstring(tree), f"{named(path)} needs a docstring"
        lines = path.read_text(encoding="utf-8").count("\n")
        assert lines <= MOST_LINES, f"split {named(path)}: {lines} lines, at the most {MOST_LINES}"


@pytest.mark.parametrize("top", FOLDERS)
def test_folder_has_few_modules(top: str) -> None:
    for folder in _folders(ROOT / top):
        if folder.match("migrations/versions"):
            continue
        modules = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= MOST_MODULES, f"{folder.relative_to(ROOT)} has {len(modules)} modules"


@pytest.mark.parametrize("package", PACKAGES)
def test_folders_of_tests_are_named_as_what_they_test(package: str) -> None:
    tests = ROOT / "tests" / package
    for folder in _folders(tests):
        name = f"{package}/{folder.relative_to(tests).as_posix()}".removesuffix("/.")
        assert (ROOT / name).is_dir() or name in _OWN_FOLDERS, f"tests/{name} mirrors no folder"


def test_names_of_tests_are_short_and_of_one_meaning() -> None:
    """A file's tests have different names, or the last one alone would run."""
    for path in (path for path in files("tests") if path.name.startswith("test_")):
        tree = parsed(path)
        for body in (tree.body, *(n.body for n in tree.body if isinstance(n, ast.ClassDef))):
            names = [
                n.name for n in body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")
            ]
            where = path.relative_to(ROOT)
            assert len(names) == len(set(names)), f"{where} has a name twice"
            for name in names:
                assert len(name) <= LONGEST_NAME, f"{where}: {name} has {len(name)} characters"


def test_import_contracts_name_every_runtime_folder() -> None:
    """A runtime that a contract leaves out could be imported from anywhere."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]
    homes = {home.rpartition(":")[0].split(".")[2] for home in _BUILT_IN.values()} - {"testing"}
    layers = next(c for c in contracts["contracts"] if c.get("containers") == ["collage.backends"])[
        "layers"
    ]
    assert homes == {name for layer in layers if "mnn" in layer for name in layer.split(" | ")}
    for key in ("protected_modules", "forbidden_modules"):
        listed = [
            set(c[key]) for c in contracts["contracts"] if "collage.backends.mnn" in c.get(key, ())
        ]
        assert listed and all(
            {f"collage.backends.{home}" for home in homes} <= names for names in listed
        )

"""docs/write-a-backend.md: its example passes the conformance suite and registers as documented."""

import re
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from collage.backends import registry
from collage.backends.testing.conformance import BackendConformance

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "examples"))

from numpy_backend import NumpyBackend  # noqa: E402


class TestNumpy(BackendConformance):
    backend = NumpyBackend()


def test_example_backend_registers_by_the_documented_entry_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = (DOCS / "write-a-backend.md").read_text(encoding="utf-8")
    shown = re.search(r"```toml\n(.*?)```", page, re.S)
    assert shown is not None
    points = tomllib.loads(shown[1])["project"]["entry-points"][registry.GROUP]
    plugins = [EntryPoint(name, value, registry.GROUP) for name, value in points.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: plugins)
    assert isinstance(registry.backends()["numpy"], NumpyBackend)


def test_the_test_that_the_page_shows_is_python() -> None:
    page = (DOCS / "write-a-backend.md").read_text(encoding="utf-8")
    for code in re.findall(r"```python\n(.*?)```", page, re.S):
        compile(code, "write-a-backend.md", "exec")

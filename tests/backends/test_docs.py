"""What docs/backends promises: every built-in backend has its page, and every option its line there."""

import re
from pathlib import Path

import pytest

from collage.backends import registry
from collage.backends.options import HOST_LABEL, RULES

DOCS = Path(__file__).parents[2] / "docs"
COMMON = (DOCS / "backends.md").read_text(encoding="utf-8")
PAGES = {
    path.stem: path.read_text(encoding="utf-8") for path in sorted((DOCS / "backends").glob("*.md"))
}
ROW = r"^\| `-{}` \| {} \|"


@pytest.mark.parametrize("name", registry._BUILT_IN)
def test_every_backend_and_option_is_documented(name: str) -> None:
    backend = registry.backends()[name]
    assert name in PAGES, f"write docs/backends/{name}.md"
    assert PAGES[name].startswith(f"# {name}\n")
    assert f"Style: {backend.style}" in PAGES[name]
    assert f"(backends/{name}.md)" in COMMON
    for option in backend.options:
        text = PAGES[name] if option.name != "threads" else COMMON
        row = ROW.format(option.name, re.escape(option.default))
        assert re.search(row, text, re.M), f"{name} -{option.name}={option.default} is not documented"
        for choice in option.choices:
            assert choice in PAGES[name]


def test_common_options_are_documented() -> None:
    for option in (RULES, HOST_LABEL):
        row = ROW.format(option.name, option.default)
        assert re.search(row, COMMON, re.M)


def test_no_page_speaks_of_a_backend_that_is_gone() -> None:
    assert set(PAGES) == set(registry._BUILT_IN)

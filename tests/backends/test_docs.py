"""What docs/backends.md promises: every built-in backend and every option has its line there."""

import re
from pathlib import Path

import pytest

from collage.backends import registry
from collage.backends.options import HOST_LABEL, RULES

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = dict(
    re.findall(
        r"^## (\w+)\n(.*?)(?=^## |\Z)", (DOCS / "backends.md").read_text(encoding="utf-8"), re.M | re.S
    )
)
ROW = r"^\| `-{}` \| {} \|"


@pytest.mark.parametrize("name", registry._BUILT_IN)
def test_every_backend_and_option_is_documented(name: str) -> None:
    backend = registry.backends()[name]
    assert f"Style: {backend.style}" in SECTIONS[name]
    for option in backend.options:
        text = (
            SECTIONS[name]
            if option.name != "threads"
            else (DOCS / "backends.md").read_text(encoding="utf-8")
        )
        row = ROW.format(option.name, re.escape(option.default))
        assert re.search(row, text, re.M), f"{name} -{option.name}={option.default} is not documented"
        for choice in option.choices:
            assert choice in SECTIONS[name]


def test_common_options_are_documented() -> None:
    for option in (RULES, HOST_LABEL):
        row = ROW.format(option.name, option.default)
        assert re.search(row, (DOCS / "backends.md").read_text(encoding="utf-8"), re.M)


def test_no_section_speaks_of_a_backend_that_is_gone() -> None:
    assert set(SECTIONS) == set(registry._BUILT_IN)

"""Every page is short, says what it says in the field's words, and links to what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/backends").glob("*.md")])
RESULTS = sorted((ROOT / "docs/results").glob("*.md"))
ALL = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "tests").rglob("*.md")),
]

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_PRIVATE = re.compile(
    r"\b(contests?|heats?|anchors?|arena|crews?|parcels?|nursery|witness(es)?|oracles?|undecided)\b",
    re.IGNORECASE,
)


def _id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _prose_words(text: str) -> int:
    """Words outside of code blocks and tables."""
    lines = _FENCED.sub("", text).splitlines()
    return sum(len(line.split()) for line in lines if not line.startswith(("|", "    ")))


def _anchors(text: str) -> set[str]:
    """What links to a page's headings end with, as GitHub makes it of them."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len(_read(README).split()) <= 400


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_a_page_has_at_most_900_words(page: Path) -> None:
    assert _prose_words(_read(page)) <= 900


@pytest.mark.parametrize("page", RESULTS, ids=_id)
def test_a_page_of_results_is_listed_and_says_how_they_were_found(page: Path) -> None:
    assert f"({page.name})" in _read(ROOT / "docs/results/README.md") or page.name == "README.md"
    text = " ".join(_read(page).lower().split())
    said = ("python -m ", "collage bench", "by hand")
    assert any(word in text for word in said), "no command, and not said to be by hand"


@pytest.mark.parametrize("page", ALL, ids=_id)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in _LINK.findall(_FENCED.sub("", _read(page))):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in _anchors(_read(target)), link


def test_every_page_that_the_code_cites_exists() -> None:
    folders = ("partitioner", "backends", "cost_db", "collage", "service", "benchmarks", "tests")
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for cited in re.findall(r"docs/[\w/-]+\.md", _read(path)):
            assert (ROOT / cited).exists(), f"{_id(path)} cites {cited}"


@pytest.mark.parametrize("page", ALL, ids=_id)
def test_no_private_words(page: Path) -> None:
    found = _PRIVATE.search(_read(page))
    assert found is None, found


def test_prose_is_counted_without_code_and_tables() -> None:
    text = "# A page\n\nFour words of prose.\n\n    collage targets\n\n| a | b |\n\n```python\nx = 1\n```\n"
    assert _prose_words(text) == 7
    assert _anchors(text) == {"a-page"}

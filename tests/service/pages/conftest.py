"""A browser, pages whose console must stay clean, screenshots, and axe-core's findings."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, TimeoutError, sync_playwright

OUTPUT = Path(__file__).resolve().parents[2] / "output"
AXE = Path(__file__).parent / "axe" / "axe.min.js"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = "chromium is not installed (apt-get install chromium)"

Shoot = Callable[[Page, str], None]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; where continuous integration lacks it, tests fail rather than skip."""
    if CHROMIUM is None:
        pytest.fail(MISSING)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which every error in the console is a failure."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    yield opened
    opened.close()
    assert not problems


def shoot(page: Page, name: str) -> None:
    """Leave a screenshot for people."""
    OUTPUT.mkdir(exist_ok=True)
    page.screenshot(path=OUTPUT / f"{name}.png", full_page=True)


def downloaded(page: Page, selector: str) -> Path:
    """The file that a click brings; where no download begins, the click is made again, as people do."""
    for patience_ms in (10_000, 20_000, 40_000):
        try:
            with page.expect_download(timeout=patience_ms) as download:
                page.click(selector)
            return Path(download.value.path())
        except TimeoutError:
            continue
    raise AssertionError(f"three clicks on {selector} began no download")


def serious_findings(page: Page) -> list[str]:
    """What axe-core finds on a page that is serious or worse."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:160]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]

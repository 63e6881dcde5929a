"""Chromium for tests of pages; in continuous integration none of them may be skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

PATH = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = "chromium is not installed (apt-get install chromium)"

needs_chromium = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(PATH is None, reason=MISSING),
]


@contextmanager
def opened() -> Iterator[Browser]:
    """Chromium without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PATH, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In continuous integration (`CI` is set) a browser test that is skipped has failed."""
    report: Any = yield
    if report.skipped and os.environ.get("CI") and item.get_closest_marker("browser"):
        report.outcome = "failed"
        report.longrepr = f"a browser test was skipped in continuous integration: {report.longrepr[2]}"
    return report

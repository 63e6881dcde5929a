"""Tests that use a package of an extra."""

from __future__ import annotations

import importlib.util

import pytest


def needs(package: str) -> list[pytest.MarkDecorator]:
    """Marks of tests that import a package: without it they are skipped; one process runs all, and imports it."""
    missing = importlib.util.find_spec(package) is None
    return [
        pytest.mark.skipif(missing, reason=f"{package} is not installed"),
        pytest.mark.xdist_group(package),
    ]

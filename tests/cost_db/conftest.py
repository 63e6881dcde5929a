"""A cost database on each engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collage.cost_db.database import CostDatabase


@pytest.fixture
def database(database_url: str) -> Iterator[CostDatabase]:
    """A fresh, empty cost database."""
    database = CostDatabase(database_url)
    yield database
    database.close()

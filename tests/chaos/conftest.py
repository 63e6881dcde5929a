"""Machines to break; none of their processes outlives its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.machine import Machine
from tests.postgres import Postgres

Start = Callable[..., Machine]


def on(*engines: str) -> pytest.MarkDecorator:
    """Run a test on these engines; each test that breaks things is slow."""
    return pytest.mark.parametrize("database_url", engines, indirect=True)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database on the engine that the test is marked with."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'costs.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def start(tmp_path: Path, database_url: str) -> Iterator[Start]:
    """Starts machines over one folder and one database."""
    started: list[Machine] = []

    def one_more(**settings: object) -> Machine:
        started.append(Machine(tmp_path, database_url, **settings))
        return started[-1]

    yield one_more
    for machine in started:
        machine.close()

"""Eight tuners in processes of their own start one model at once: each cost is measured, and each search made, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.single_flight import fly
from benchmarks.support.zero_model import best_plan
from collage.cost_db.costs.queries import CostFilter
from collage.cost_db.database import CostDatabase
from tests.chaos.conftest import on


@pytest.mark.slow
@on("postgresql")
def test_eight_tuners_measure_each_candidate_once(database_url: str, tmp_path: Path) -> None:
    """All get the plan."""
    CostDatabase(database_url).close()
    flight = fly(database_url, tuners=8, measurement_s=0.1, folder=tmp_path / "flight", fresh=True)
    assert flight.searched == 8
    assert len(flight.measured) == len(set(flight.measured)) > 5
    database = CostDatabase(database_url)
    assert len(database.query(CostFilter(), limit=1_000).items) == len(flight.measured)
    assert database.stats().claims == 0
    database.close()
    assert flight.plans == (best_plan(),) * 8


@pytest.mark.slow
@on("sqlite", "postgresql")
def test_one_of_eight_tuners_searches_and_all_get_the_plan(database_url: str, tmp_path: Path) -> None:
    CostDatabase(database_url).close()
    flight = fly(database_url, tuners=8, measurement_s=0.1, folder=tmp_path / "flight")
    assert flight.searched == 1
    assert flight.plans == (best_plan(),) * 8
    database = CostDatabase(database_url)
    assert database.stats().claims == 0
    database.close()

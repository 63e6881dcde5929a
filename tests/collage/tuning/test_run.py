"""What every stage runs with."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from collage.cost_db.database import CostDatabase
from collage.events import Event
from collage.options import TuneOptions
from collage.partitioner.errors import CancelledError
from collage.partitioner.target import Target
from collage.tuning.run import Run, TuneRequest


@pytest.fixture
def database(tmp_path: Path) -> CostDatabase:
    return CostDatabase(f"sqlite:///{tmp_path / 'costs.db'}")


def test_a_stage_that_comes_twice_is_told_twice_and_counted_together(
    database: CostDatabase, tmp_path: Path
) -> None:
    told: list[Event] = []
    run = Run(database, tmp_path, listener=told.append)
    with run.stage("measure", "first"):
        once_s = run.clock.total_s
    with run.stage("measure", "then"):
        pass
    assert [(event.stage, event.message) for event in told] == [
        ("measure", "first"),
        ("measure", "then"),
    ]
    assert 0 <= run.clock.seconds["measure"] <= run.clock.total_s
    assert once_s <= run.clock.total_s
    database.close()


def test_no_stage_begins_after_a_cancel(database: CostDatabase, tmp_path: Path) -> None:
    cancel = threading.Event()
    told: list[Event] = []
    run = Run(database, tmp_path, listener=told.append, cancel=cancel)
    cancel.set()
    with pytest.raises(CancelledError, match="before the stage emit"), run.stage("emit", "writing"):
        raise AssertionError("it began")
    assert not told and not run.clock.seconds
    database.close()


@pytest.mark.parametrize(
    ("options", "searches"),
    [({}, True), ({"strategy": "greedy"}, False), ({"plan": {"partitions": []}}, False)],
)
def test_only_the_optimal_strategy_without_a_plan_searches(
    options: dict[str, object], searches: bool
) -> None:
    request = TuneRequest(Path("m.onnx"), (Target("null"),), TuneOptions.from_json(options))
    assert request.searches is searches

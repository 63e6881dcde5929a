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
from collage.tuning.run import Clock, Run, TuneRequest


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


_PLAN = {"format": 1, "model_sha256": "0" * 64, "partitions": [{"target": "null", "nodes": ["a"]}]}


@pytest.mark.parametrize(
    ("options", "searches"),
    [({}, True), ({"strategy": "greedy"}, False), ({"plan": _PLAN}, False)],
)
def test_only_the_optimal_strategy_without_a_plan_searches(
    options: dict[str, object], searches: bool
) -> None:
    request = TuneRequest(Path("m.onnx"), (Target("null"),), TuneOptions.from_json(options))
    assert request.searches is searches


def test_time_left_is_known_of_each_event_and_never_negative(
    database: CostDatabase, tmp_path: Path
) -> None:
    now_s = [0.0]
    told: list[Event] = []
    run = Run(database, tmp_path, listener=told.append, clock=Clock(lambda: now_s[0])).telling_time()

    def tell(stage: str, at_s: float) -> Event:
        now_s[0] = at_s
        run.listener(Event(stage, "said"))
        return told[-1]

    assert tell("ingest", 1.0).remaining_s is tell("ingest", 1.0).share_done is None
    run.clock.expect(39.0)
    first = tell("measure", 10.0)
    assert (first.remaining_s, first.share_done) == (30.0, 0.25)
    # A stage that ends early shortens the rest, and one that takes longer never takes back what was done.
    run.clock.expect(10.0)
    assert tell("search", 10.0).share_done == 0.5
    run.clock.expect(90.0)
    assert tell("search", 10.0).share_done == 0.5
    late = tell("emit", 500.0)
    assert late.remaining_s == 0.0 and late.share_done == 0.99
    done = tell("done", 501.0)
    assert (done.remaining_s, done.share_done) == (0.0, 1.0)
    database.close()


def test_a_run_that_exceeds_its_limit_says_which_stages_took_the_time(
    database: CostDatabase, tmp_path: Path
) -> None:
    now_s = [0.0]
    run = Run(database, tmp_path, clock=Clock(lambda: now_s[0]))
    for stage, seconds in (("ingest", 3.0), ("measure", 21.0), ("emit", 1.0), ("end_to_end", 9.0)):
        run.clock.add(stage, seconds)
    now_s[0] = 34.0
    assert run.about_overrun(1e3) == [], "it has no limit"
    limited = run.within(20.0)
    assert limited.about_overrun(1.0) == []
    (told,) = limited.about_overrun(2.0)
    assert told == (
        "the run takes about 36 s, longer than its time limit of 20 s (measure 21 s, end_to_end 9 s, ingest 3 s); "
        "allow more with --time-limit"
    )
    database.close()

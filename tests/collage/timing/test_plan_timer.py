"""What a timer keeps from one comparison to the next."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from collage.events import ignore
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.search.fixed_plans import single_plan
from collage.timing.plan_timer import PlanTimer
from collage.timing.request import PlanTiming, TimingRequest
from collage.timing.timed_plan import TimedPlan
from tests.collage.timing.test_child import TEXT


def test_far_cores_in_a_tenth_of_the_rounds_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "model.onnx")
    model = Model.open(normalize(tmp_path / "model.onnx", tmp_path / "normalized", {}).path)
    regions = RegionFiles(model, tmp_path / "regions", None)
    timer = PlanTimer(regions, TimingRequest((), {}, (), (), Path(), Path()), ignore)
    stated = [
        PlanTiming((1000.0,) * 11, (1000.0,), 0.0, left_out=1, seen_us=(10.0,)),
        PlanTiming((1000.0,) * 12, (1000.0,), 0.0, seen_us=(10.0, 9.0)),
        PlanTiming((1000.0,) * 12, (1000.0,), 0.0, far=True, seen_us=(10.0, 9.0, 18.0)),
        PlanTiming(failure="hang"),
    ]
    known: list[tuple[float, ...]] = []

    def time_plans(comparison: TimingRequest, *_: object) -> list[PlanTiming]:
        known.append(comparison.seen_us)
        return [stated[len(known) - 1]]

    monkeypatch.setattr("collage.timing.plan_timer.time_plans", time_plans)
    timer.time([TimedPlan(single_plan(model, Target("null")), "single one")])
    assert not timer.warnings()
    timer.time([])
    assert not timer.warnings()
    timer.time([])
    (warning,) = timer.warnings()
    assert "in 13 of 36 rounds the host of this virtual machine had moved its cores" in warning
    timer.time([])
    # What one comparison saw the next ones know, even after one in which nothing ran.
    stated.append(stated[-1])
    timer.time([])
    assert known == [(), (10.0,), (10.0, 9.0), (10.0, 9.0, 18.0), (10.0, 9.0, 18.0)]


def test_plan_that_was_refused_is_a_failure_and_never_wins() -> None:
    timer = PlanTimer(None, None, ignore)  # type: ignore[arg-type]
    fast, slow = (TimedPlan(Plan((Candidate(i, Target("null")),)), f"{i}") for i in (1, 2))
    for entry, us in ((fast, 700.0), (slow, 1000.0)):
        entry.timings[0], entry.baseline_ratios[0] = PlanTiming((us,) * 8), [us / 1000.0] * 8
        timer.entries.append(entry)
    assert timer.standings.winner() is fast
    assert timer.refuse(fast, "its evaluation gave 0.1").winner() is slow
    assert fast.failure == "its evaluation gave 0.1" and not fast.timed

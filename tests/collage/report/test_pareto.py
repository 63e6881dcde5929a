"""The Pareto front: which plans are its points, and how their latencies are scaled."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.report.pareto import front
from collage.timing.request import PlanTiming
from collage.timing.standings import Standings
from collage.timing.timed_plan import TimedPlan

EXACT, REDUCED = Target("exact"), Target("reduced")


def _entry(target: Target, error: float, **latency_us: float) -> TimedPlan:
    """An entry with what it took in comparisons, by their number."""
    entry = TimedPlan(Plan((Candidate(0b11, target),)), str(target))
    for name, us in latency_us.items():
        number = int(name.removeprefix("in_"))
        entry.timings[number] = PlanTiming((us,) * 8, (us,), error)
        entry.baseline_ratios[number] = [us / 1000.0] * 8
    return entry


def test_pareto_points_have_latencies_at_the_winners_pace(tmp_path: Path) -> None:
    """The exact plan ran in a slow minute only; the ratios give its latency beside the winner."""
    text = "agraph (float[4] x) => (float[4] y) { [a] h = Exp(x) [b] y = Neg(h) }"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 20]> {text}')
    onnx.save(proto, tmp_path / "model.onnx")
    model = Model.open(normalize(tmp_path / "model.onnx", tmp_path / "work", {}).path)
    exact, faster = (
        _entry(EXACT, 1e-6, in_1=3000),
        _entry(REDUCED, 1e-2, in_0=1000, in_1=1500, in_2=1000),
    )
    slower = _entry(REDUCED, 5e-2, in_0=1800)
    points = front(model, Standings((faster, slower, exact)), faster)
    assert [point["latency_us"] for point in points] == pytest.approx([2000, 1000])
    assert [point["plan"]["partitions"][0]["latency_us"] for point in points] == pytest.approx(
        [2000, 1000]
    )

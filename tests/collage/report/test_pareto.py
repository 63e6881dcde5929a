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
from collage.timing.timed_plan import TimedPlan

EXACT, REDUCED = Target("exact"), Target("reduced")


def _entry(target: Target, latency_us: float, ratio: float, error: float) -> TimedPlan:
    entry = TimedPlan(Plan((Candidate(0b11, target),)), str(target))
    entry.timings[0] = PlanTiming((latency_us,) * 8, (latency_us,), error)
    entry.baseline_ratios[0] = [ratio] * 8
    return entry


def test_pareto_points_have_latencies_at_the_winners_pace(tmp_path: Path) -> None:
    """The exact plan ran in a slow minute only; the ratios give its latency beside the winner."""
    text = "agraph (float[4] x) => (float[4] y) { [a] h = Exp(x) [b] y = Neg(h) }"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 20]> {text}')
    onnx.save(proto, tmp_path / "model.onnx")
    model = Model.open(normalize(tmp_path / "model.onnx", tmp_path / "work", {}).path)
    exact, faster = _entry(EXACT, 3000, 1.0, 1e-6), _entry(REDUCED, 1000, 0.5, 1e-2)
    slower = _entry(REDUCED, 1100, 0.9, 5e-2)
    points = front(model, [slower, faster, exact], faster)
    assert [point["latency_us"] for point in points] == pytest.approx([2000, 1000])
    assert [point["plan"]["partitions"][0]["latency_us"] for point in points] == pytest.approx(
        [2000, 1000]
    )

"""Within a budget: the returned plan keeps it on held-out samples, on any machine.

The reduced target is simulated: it rounds values to bfloat16 and states its cost, and the exact one
states that it is slow, so that reducing pays wherever the budget allows it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collage
from benchmarks.support.models import benchmark_model
from collage.artifact.pareto_point import read_front, write_pareto_point
from collage.backends.numerics.comparison import output_error
from collage.backends.numerics.reference import reference_session, run_session
from collage.partitioner.emit.annotate import read_plan
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.report.pareto import draw_front
from tests.models import sample_inputs

pytestmark = pytest.mark.slow
EXACT, REDUCED = "simulated -precision=f32 -speedup=0.15", "simulated -precision=bf16 -speedup=1"
# Of each model: the budgets, and seconds to keep them in. There is time to reduce what can be reduced, but for silero, where the
# budget alone is asked for.
BUDGETS = {
    "ppocr_cls": ((1e-1, 1e-3), 10.0),
    "magika": ((3e-2, 3e-3), 10.0),
    "silero": ((1e-1, 1e-3), 3.0),
}
NAMES = tuple(BUDGETS)
# One of silero's outputs is a single number, at times near zero: the same reduction errs by ten times as much on one
# sample as on another, so that few samples say little of others.
GIVEN = {"ppocr_cls": 4, "magika": 4, "silero": 20}


class Case:
    """A model with samples to tune on and others that no tuning sees."""

    def __init__(self, name: str, folder: Path) -> None:
        self.model = benchmark_model(name, folder)
        self.folder = folder
        normalized = normalize(self.model.path, folder / "normalized", self.model.dims).path
        index = Model.open(normalized).index
        specs = [index.values[value] for value in index.inputs]
        given = GIVEN[name]
        samples = [sample_inputs(name, specs, seed) for seed in range(given + 2)]
        self.unseen = samples[given:]
        stacked = {n: np.stack([s[n] for s in samples[:given]]) for n in samples[0]}
        self.inputs = folder / "inputs.npz"
        np.savez(self.inputs, allow_pickle=False, **stacked)
        self.outputs = list(index.outputs)
        session = reference_session(normalized)
        self.expected = [run_session(session, sample, self.outputs) for sample in self.unseen]

    def tune(self, **options: Any) -> collage.Artifact:
        return collage.tune(
            self.model.path,
            [EXACT, REDUCED],
            output=self.folder / "tuned.onnx",
            inputs=self.inputs,
            dims=dict(self.model.dims),
            database=f"sqlite:///{self.folder / 'costs.db'}",
            **{"time_limit_s": 10.0, **options},
        )

    def error(self, artifact: Path, metric: str = "max") -> float:
        with collage.load(artifact, cache_dir=False) as session:
            return max(
                output_error(metric, session.run(self.outputs, sample), list(wanted.values()))
                for sample, wanted in zip(self.unseen, self.expected, strict=True)
            )


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {name: Case(name, tmp_path_factory.mktemp(name)) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_returned_plan_never_exceeds_its_budget(cases: dict[str, Case], name: str) -> None:
    """Tune, write, load, and run on samples that tuning never saw."""
    case = cases[name]
    budgets, limit_s = BUDGETS[name]
    reduced_nodes = []
    for budget in budgets:
        artifact = case.tune(tolerance=budget, time_limit_s=limit_s)
        report = artifact.report
        assert report["max_relative_error"] <= budget
        parts = report["partitions"]
        reduced_nodes.append(sum(len(p["nodes"]) for p in parts if "bf16" in p["target"]))
        # Samples that the run never saw may err more, but not by much.
        assert case.error(artifact.path) <= 2 * budget
    if name != "silero":
        assert reduced_nodes[0] > 0
        assert reduced_nodes == sorted(reduced_nodes, reverse=True)


def test_the_front_and_its_points(cases: dict[str, Case]) -> None:
    case = cases["ppocr_cls"]
    artifact = case.tune(tolerance=1e-2, pareto=True)
    points = artifact.report["front"]
    errors = [point["max_relative_error"] for point in points]
    times = [point["latency_us"] for point in points]
    assert len(points) >= 2
    assert errors == sorted(errors)
    assert times == sorted(times, reverse=True)
    assert read_front(artifact.path) == points
    assert draw_front(points, "max", 1e-2).count("<circle") == len(points)
    last = write_pareto_point(artifact.path, len(points) - 1, case.folder / "taken.onnx")
    assert [str(t) for t in read_plan(last.path).plan.targets] == points[-1]["targets"]
    assert case.error(last.path) <= 2 * max(errors[-1], 1e-3)
    with pytest.raises(BadInputError, match="there is no point"):
        write_pareto_point(artifact.path, len(points), case.folder / "none.onnx")


def test_a_share_of_rows_may_find_another_largest_element(cases: dict[str, Case]) -> None:
    """`top1` allows errors of any size as long as the largest element stays where it is."""
    case = cases["ppocr_cls"]
    artifact = case.tune(tolerance=0.01, metric="top1")
    assert artifact.report["max_relative_error"] == 0
    assert any("bf16" in part["target"] for part in artifact.report["partitions"])
    assert case.error(artifact.path, "top1") <= 0.5


@pytest.mark.parametrize(("metric", "budget"), [("l2", 1e-2), ("cosine", 1e-4)])
def test_another_metric_bounds_the_returned_plan(
    cases: dict[str, Case], metric: str, budget: float
) -> None:
    case = cases["magika"]
    artifact = case.tune(tolerance=budget, metric=metric)
    assert 0 < artifact.report["max_relative_error"] <= budget
    assert any("bf16" in part["target"] for part in artifact.report["partitions"])
    assert case.error(artifact.path, metric) <= 2 * budget

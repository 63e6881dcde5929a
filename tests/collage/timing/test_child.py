"""Comparisons of real plans, called in turn."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import onnx.parser
import pytest

from collage.accuracy.target_choice import EXACT_ERROR
from collage.backends.numerics.seeded import seeded_inputs
from collage.backends.numerics.tensor_files import write_samples
from collage.model.reference import Reference
from collage.model.sub_models import RegionFiles
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.runtime.executor import Executor
from collage.timing.child import _BuiltPlan, run_rounds
from collage.timing.request import PlanStep, PlanSteps, TimingRequest

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[8] x) => (float[8] y) { a = Relu(x)  b = Exp(a)  c = Neg(b)  y = Abs(c) }"""


@pytest.fixture
def comparison(tmp_path: Path) -> TimingRequest:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "model.onnx")
    model = Model.open(normalize(tmp_path / "model.onnx", tmp_path / "normalized", {}).path)
    inputs = tuple(model.index.values[name] for name in model.index.inputs)
    reference = Reference(model, [seeded_inputs(inputs, 0)], tmp_path / "reference")
    write_samples(tmp_path / "samples", reference.samples)
    write_samples(tmp_path / "expected", reference.values(["y"]))
    whole = RegionFiles(model, tmp_path / "regions", reference.values).get(model.index.all_nodes)
    targets = ("onnxruntime", "onnxruntime -opt=none", "onnxruntime -opt=basic")
    plans = tuple(PlanSteps((PlanStep("whole", Target.parse(target)),)) for target in targets)
    return TimingRequest(
        plans,
        {"whole": whole},
        inputs,
        ("y",),
        tmp_path / "samples",
        tmp_path / "expected",
        rounds=6,
        block_s=1e-3,
    )


class StatedWatch:
    """Cores that are near before each round, or not, as somebody stated; the last statement lasts."""

    def __init__(self, near: Sequence[bool] = (True,)) -> None:
        self._near = list(near)
        self.seen_us = [10.0]

    def __call__(self, seen_us: Sequence[float]) -> StatedWatch:
        return self

    def settle(self) -> float:
        return 10.0 if (self._near.pop(0) if len(self._near) > 1 else self._near[0]) else 18.0

    def measure(self) -> float:
        return 10.0

    def are_near(self, distances_us: Sequence[float]) -> list[bool]:
        return [us <= 10.0 for us in distances_us]

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collage.timing.child.CoreWatch", StatedWatch())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("near", "counted", "left_out", "far"),
    [
        ([True], 6, 0, False),
        ([True, False, False, True], 6, 2, False),
        # Not everything can be made up for.
        ([True, True, True, False], 3, 6, False),
        # Too few: all of them are kept, and said to be far.
        ([True, True, False], 9, 0, True),
        ([False], 6, 0, True),
    ],
)
def test_rounds_with_far_cores_are_left_out_where_others_exist(
    comparison: TimingRequest,
    monkeypatch: pytest.MonkeyPatch,
    near: list[bool],
    counted: int,
    left_out: int,
    far: bool,
) -> None:
    monkeypatch.setattr("collage.timing.child.CoreWatch", StatedWatch(near))
    monkeypatch.setattr("collage.timing.child.QUIET_SHARE", math.inf)  # other processes are ignored
    for timing in run_rounds(replace(comparison, prune=False), []):
        assert len(timing.samples_us) == counted
        assert (timing.left_out, timing.far, timing.seen_us) == (left_out, far, (10.0,))


@pytest.mark.parametrize("metric", ["max", "cosine"])
def test_a_rounded_plan_is_not_exact_by_any_metric(comparison: TimingRequest, metric: str) -> None:
    plans = tuple(
        PlanSteps((PlanStep("whole", Target.parse(f"simulated -precision={p}")),))
        for p in ("f32", "bf16")
    )
    exact, rounded = run_rounds(replace(comparison, plans=plans, metric=metric, rounds=1), [])
    assert exact.exactness == 0.0
    assert rounded.exactness is not None and rounded.error is not None
    assert rounded.exactness > EXACT_ERROR
    assert (rounded.error < EXACT_ERROR) is (metric == "cosine")


def test_plan_that_leaves_the_rounds_keeps_its_counted_times(
    comparison: TimingRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nearer(StatedWatch):
        """Far cores that count as near until they are seen nearer."""

        def are_near(self, distances_us: Sequence[float]) -> list[bool]:
            return [us <= max(10.0, min(distances_us)) for us in distances_us]

    monkeypatch.setattr("collage.timing.child.CoreWatch", Nearer([False] * 4 + [True]))
    monkeypatch.setattr("collage.timing.child.HOPELESS_RATIO", 0.0)
    monkeypatch.setattr("collage.timing.child.WaitMeter.lap", lambda meter: 0.0)
    first, *others = run_rounds(comparison, [])
    # On a busy machine rounds are made up for.
    assert comparison.rounds <= len(first.samples_us) <= 1.5 * comparison.rounds
    assert [len(timing.samples_us) for timing in others] == [4, 4]


@pytest.mark.parametrize(("waiting", "rounds"), [(1.0, 12), (0.0, 4)])
def test_plan_is_not_dropped_for_disturbed_rounds(
    comparison: TimingRequest, monkeypatch: pytest.MonkeyPatch, waiting: float, rounds: int
) -> None:
    """For four rounds the second plan seems slower, with or without other processes on the cores; then it is faster."""

    def stated(plan: _BuiltPlan, sample: object) -> None:
        is_slow = plan.position == 1 and len(plan.samples) < 4
        plan.samples.append(200.0 if is_slow else 98.0 if plan.position == 1 else 100.0)
        plan.waits.append(waiting if is_slow else 0.0)
        plan.steps.append([plan.samples[-1]])

    monkeypatch.setattr("collage.timing.child._time_block", stated)
    monkeypatch.setattr("collage.timing.child.QUIET_SHARE", math.inf)
    timings = run_rounds(replace(comparison, rounds=12), [])
    assert [len(timing.samples_us) for timing in timings] == [12, rounds, 12]


@pytest.mark.parametrize(
    ("sure_error", "rounds"), [(math.inf, [12, 4, 12, 4]), (EXACT_ERROR, [12, 12, 12, 4])]
)
def test_what_a_judge_may_refuse_drops_no_plan(
    comparison: TimingRequest, monkeypatch: pytest.MonkeyPatch, sure_error: float, rounds: list[int]
) -> None:
    """The first plan and the last are exact, and the third one, the fastest, is rounded."""
    stated_us = (200.0, 150.0, 100.0, 300.0)

    def stated(plan: _BuiltPlan, sample: object) -> None:
        plan.samples.append(stated_us[plan.position])
        plan.waits.append(0.0)
        plan.steps.append([plan.samples[-1]])

    monkeypatch.setattr("collage.timing.child._time_block", stated)
    monkeypatch.setattr("collage.timing.child.QUIET_SHARE", math.inf)
    targets = ("onnxruntime", "simulated", "simulated", "onnxruntime -opt=none")
    plans = tuple(PlanSteps((PlanStep("whole", Target.parse(target)),)) for target in targets)
    asked = replace(comparison, plans=plans, rounds=12, sure_error=sure_error)
    assert [len(timing.samples_us) for timing in run_rounds(asked, [])] == rounds


@pytest.mark.slow
def test_the_cores_are_watched_while_real_plans_run(
    comparison: TimingRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    first = run_rounds(comparison, [])[0]
    assert (len(first.seen_us) >= 6) == (len(os.sched_getaffinity(0)) > 1)
    assert first.far or len(first.samples_us) >= 3


def test_plan_that_takes_seconds_longer_is_called_once(
    comparison: TimingRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collage.timing.child._SLOW_US", 0.0)
    monkeypatch.setattr("collage.timing.child._FAR_BEHIND", 0.0)
    first, *others = run_rounds(comparison, [])
    assert comparison.rounds <= len(first.samples_us) <= 1.5 * comparison.rounds
    assert [len(timing.samples_us) for timing in others] == [1, 1]
    assert all(len(timing.step_us) == 1 and timing.failure is None for timing in others)
    all_of_them = run_rounds(replace(comparison, prune=False), [])
    counts = {len(timing.samples_us) for timing in all_of_them}
    assert len(counts) == 1 and comparison.rounds <= counts.pop() <= 1.5 * comparison.rounds


def test_slightly_slower_plan_stays_in_the_rounds(comparison: TimingRequest) -> None:
    assert all(len(timing.samples_us) >= 4 for timing in run_rounds(comparison, []))


def test_backward_round_builds_the_needed_plans_last_to_first(
    comparison: TimingRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr("collage.timing.child.send_message", told.append)
    for backwards, order in ((False, [0, 1, 2]), (True, [1, 0, 2])):
        timings = run_rounds(replace(comparison, needed=2, backwards=backwards, rounds=1), [])
        assert told[:3] == order
        assert all(timing.failure is None for timing in timings)
        # Turns are taken in the order of the plans, whichever was built first.
        # A disturbed round is made up for.
        assert told[3:6] == [0, 1, 2]
        told.clear()


def test_plans_too_slow_for_the_budget_are_called_once_a_round(
    comparison: TimingRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With single calls as blocks, two rounds compare what three longer ones have no time for."""
    calls: list[int] = []
    timed = Executor.run_timed

    def counted(executor: Executor) -> list[float]:
        calls.append(1)
        return timed(executor)

    monkeypatch.setattr(Executor, "run_timed", counted)
    slow = replace(comparison, prune=False, budget_s=0.0, block_s=0.0)
    timings = run_rounds(slow, [])
    assert [len(timing.samples_us) for timing in timings] == [2, 2, 2]
    assert len(calls) == 6
    for timing in timings:
        assert timing.latency_us >= sum(timing.step_us)

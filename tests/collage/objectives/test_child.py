"""Trials of real plans: so many requests at once, verified before, and failures that are told."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from collage.backends.numerics.seeded import seeded_inputs
from collage.backends.numerics.tensor_files import write_samples
from collage.model.reference import Reference
from collage.model.sub_models import RegionFiles
from collage.objectives.child import run_trial, step_times_us
from collage.objectives.more_rows import MoreRows, with_rows
from collage.objectives.trial import TrialRequest
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.timing.request import PlanStep, PlanSteps, TimingRequest
from tests.collage.artifact.test_instances import chain


def timing_of(model: Model, folder: Path, *ends: int) -> TimingRequest:
    """A plan of partitions that end at these nodes, all on ONNX Runtime."""
    inputs = tuple(model.index.values[name] for name in model.index.inputs)
    (output,) = model.index.outputs
    reference = Reference(model, [seeded_inputs(inputs, 0)], folder / "reference")
    write_samples(folder / "samples", reference.samples)
    write_samples(folder / "expected", reference.values([output]))
    files = RegionFiles(model, folder / "regions", reference.values)
    cuts = itertools.pairwise((0, *ends, len(model.index.nodes)))
    regions = {f"{a}-{b}": files.get(sum(1 << n for n in range(a, b))) for a, b in cuts}
    return TimingRequest(
        (PlanSteps(tuple(PlanStep(name, Target.parse("onnxruntime")) for name in regions)),),
        regions,
        inputs,
        (output,),
        folder / "samples",
        folder / "expected",
        error_limit=1e-3,
    )


@pytest.fixture
def timing(tmp_path: Path) -> TimingRequest:
    return timing_of(chain(tmp_path), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("instances", [1, 3])
def test_clients_ask_until_the_time_is_over(timing: TimingRequest, instances: int) -> None:
    trial = run_trial(TrialRequest(timing, instances, 0.2))
    assert trial.failure is None and trial.error is not None and trial.error < 1e-3
    assert trial.requests >= 3 * instances
    assert 0 < trial.median_us <= trial.p99_us
    # Each client asks again at once: what they do together follows from the time of a request.
    assert trial.throughput <= instances * 1e6 / trial.median_us * 1.5
    assert trial.peak_rss_bytes > 1 << 20 and trial.load_s > 0


def test_each_client_has_some_answers_however_short_the_time_is(timing: TimingRequest) -> None:
    assert run_trial(TrialRequest(timing, 2, 0.0)).requests >= 6


def test_wrong_values_and_refusals_are_failures(timing: TimingRequest) -> None:
    strict = replace(timing, error_limit=-1.0)
    assert "exceeds" in (run_trial(TrialRequest(strict, 1, 0.1)).failure or "")
    unknown = PlanSteps((PlanStep(next(iter(timing.regions)), Target.parse("null -ops=Conv")),))
    refused = run_trial(TrialRequest(replace(timing, plans=(unknown,)), 1, 0.1))
    assert refused.failure


@pytest.mark.parametrize("stages", [(), (1, 2)])
def test_more_clients_than_instances_wait_for_their_turn(
    tmp_path: Path, stages: tuple[int, ...]
) -> None:
    timing = timing_of(chain(tmp_path), tmp_path, 2, 4)
    trial = run_trial(TrialRequest(timing, 2, 0.0, stages=stages, clients=5))
    assert trial.failure is None and trial.requests >= 3 * 5


@pytest.mark.slow
def test_each_row_of_a_call_has_a_client(tmp_path: Path) -> None:
    made = with_rows(chain(tmp_path), 4, tmp_path / "rows", None)
    assert isinstance(made, MoreRows)
    trial = run_trial(TrialRequest(timing_of(made.model, tmp_path), 2, 0.2, rows=4))
    assert trial.failure is None and trial.error is not None and trial.error < 1e-3
    assert trial.requests >= 3 * 2 * 4 and trial.throughput > 0


@pytest.mark.slow
def test_pipeline_has_a_client_for_each_request_under_way(tmp_path: Path) -> None:
    timing = timing_of(chain(tmp_path), tmp_path, 2, 4)
    trial = run_trial(TrialRequest(timing, 3, 0.2, stages=(1, 2)))
    assert trial.failure is None and trial.error is not None and trial.error < 1e-3
    assert trial.requests >= 9 and trial.throughput > 0


def test_each_partition_is_timed(tmp_path: Path) -> None:
    times = step_times_us(timing_of(chain(tmp_path), tmp_path, 2, 4))
    assert len(times) == 3 and all(us > 0 for us in times)

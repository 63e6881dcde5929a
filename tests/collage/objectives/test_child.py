"""Trials of real plans: so many requests at once, verified before, and failures that are told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collage.backends.numerics.seeded import seeded_inputs
from collage.backends.numerics.tensor_files import write_samples
from collage.model.reference import Reference
from collage.model.sub_models import RegionFiles
from collage.objectives.child import run_trial
from collage.objectives.trial import TrialRequest
from collage.partitioner.target import Target
from collage.timing.request import PlanStep, PlanSteps, TimingRequest
from tests.collage.artifact.test_instances import chain


@pytest.fixture
def timing(tmp_path: Path) -> TimingRequest:
    model = chain(tmp_path)
    inputs = tuple(model.index.values[name] for name in model.index.inputs)
    (output,) = model.index.outputs
    reference = Reference(model, [seeded_inputs(inputs, 0)], tmp_path / "reference")
    write_samples(tmp_path / "samples", reference.samples)
    write_samples(tmp_path / "expected", reference.values([output]))
    whole = RegionFiles(model, tmp_path / "regions", reference.values).get(model.index.all_nodes)
    return TimingRequest(
        (PlanSteps((PlanStep("whole", Target.parse("onnxruntime")),)),),
        {"whole": whole},
        inputs,
        (output,),
        tmp_path / "samples",
        tmp_path / "expected",
        error_limit=1e-3,
    )


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
    unknown = PlanSteps((PlanStep("whole", Target.parse("null -ops=Conv")),))
    refused = run_trial(TrialRequest(replace(timing, plans=(unknown,)), 1, 0.1))
    assert refused.failure

"""Tuning for throughput and memory: what is measured, chosen, reported, and remembered."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import collage
from collage.artifact.artifact import read_report
from collage.backends.machine.process_policy import default_threads
from collage.backends.numerics.reference import reference_session, run_reference, run_session
from collage.objectives.settings import Setting
from collage.objectives.trial import Trial
from collage.options import OptionsError, TuneOptions
from collage.partitioner.errors import BadInputError
from collage.service.report_models import ReportView
from collage.tuning.objectives import objective as objective_module
from collage.tuning.stages import Refined
from collage.tuning.tuning_cache import _chosen
from tests.collage.accuracy.test_mix_runner import layers
from tests.collage.artifact.test_instances import WIDTH, chain

ROWS = 4


def tuned(folder: Path, **options: Any) -> collage.Artifact:
    chain(folder)
    return collage.tune(
        folder / "given.onnx",
        ["onnxruntime"],
        output=folder / "tuned.onnx",
        database=f"sqlite:///{folder / 'c.db'}",
        **{"strategy": "single", "time_limit_s": 10.0, **options},
    )


@pytest.fixture
def one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls compute one request, and all settings are measured, however busy the machine is."""
    monkeypatch.setattr("collage.tuning.objectives.rows.row_counts", lambda *_: [])
    monkeypatch.setattr(objective_module, "_fits", lambda _: lambda: True)


@pytest.mark.slow
@pytest.mark.usefixtures("one_row")
def test_throughput_is_measured_with_requests_at_once(tmp_path: Path) -> None:
    artifact = tuned(tmp_path, objective="throughput")
    objective = artifact.report["objective"]
    assert objective["name"] == "throughput" and objective["met"] and objective["settings"]
    (ours,) = (each for each in objective["settings"] if each.get("chosen"))
    assert ours["requests"] > 0 and ours["throughput_per_s"] > 0
    assert 0 < ours["median_us"] <= ours["p99_us"] and ours["peak_rss_bytes"] > 1 << 20
    measured = {(each["instances"], each["threads"]) for each in objective["settings"]}
    cores = default_threads()
    assert (1, cores) in measured and (cores, 1) in measured
    assert artifact.plan["instances"] == {
        "count": ours["instances"],
        "threads": ours["threads"],
        "cores": cores,
    }
    with collage.load(artifact.path, cache_dir=False) as session:
        assert (session.instances, session.threads) == (ours["instances"], ours["threads"])
    ReportView.model_validate_json(
        ReportView(**read_report(artifact.path)).model_dump_json(by_alias=True)
    )
    again = tuned(tmp_path, plan=artifact.plan, strategy="optimal")
    assert again.plan["instances"] == artifact.plan["instances"]


@pytest.mark.slow
def test_for_memory_there_is_one_instance(tmp_path: Path) -> None:
    artifact = tuned(tmp_path, objective="memory", max_latency_ms=60_000.0)
    objective = artifact.report["objective"]
    assert objective["met"] and objective["max_latency_ms"] == 60_000.0
    assert {each["instances"] for each in objective["settings"]} == {1}


@pytest.fixture
def rounded_is_lean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is stated: plans in bf16 take half."""

    def measure(setting: Setting, seconds: float) -> Trial:
        is_lean = any("bf16" in str(target) for target in setting.plan.targets)
        return Trial(100.0, 1e4, 1e4, 10, (64 if is_lean else 128) << 20, 1.0, 0.0)

    monkeypatch.setattr(objective_module, "_measure", lambda *_: measure)
    monkeypatch.setattr(objective_module, "_fits", lambda _: lambda: True)


@pytest.mark.slow
@pytest.mark.usefixtures("rounded_is_lean")
@pytest.mark.parametrize("own", [False, True])
def test_a_leaner_plan_must_pass_the_evaluation_too(tmp_path: Path, own: bool) -> None:
    """The plan in bf16 is slower and leaner, so nobody scored it before memory counted."""
    reference = reference_session(layers(tmp_path))
    samples = np.random.default_rng(3).standard_normal((80, 4, 64)).astype(np.float32)
    np.savez(tmp_path / "inputs.npz", r0=samples)
    labels = [run_session(reference, {"r0": s}, ["r6"])["r6"].argmax(axis=1) for s in samples]

    def rows_kept(session: Any) -> float:
        made = [session.run(None, {"r0": sample})[0].argmax(axis=1) for sample in samples]
        return float(np.mean(np.array(made) == labels))

    exact, rounded = "simulated -precision=f32 -speedup=2", "simulated -precision=bf16 -speedup=1"
    found = {}
    for max_drop in (0.5, 1e-4):
        artifact = collage.tune(
            tmp_path / "layers.onnx",
            [exact, rounded],
            output=tmp_path / "tuned.onnx",
            inputs=tmp_path / "inputs.npz",
            database=f"sqlite:///{tmp_path / 'c.db'}",
            time_limit_s=10.0,
            objective="memory",
            evaluate=rows_kept if own else "top1",
            max_drop=max_drop,
        )
        found[max_drop] = artifact.report
    targets = {drop: [p["target"] for p in report["partitions"]] for drop, report in found.items()}
    # A variant, such as one with fewer threads, may be returned as well.
    assert all("-precision=bf16" in target for target in targets[0.5]), targets
    assert all("-precision=f32" in target for target in targets[1e-4]), targets
    measured = [each for each in found[1e-4]["objective"]["settings"] if "failure" not in each]
    assert not any("bf16" in str(each["targets"]) for each in measured)
    if not own:
        assert found[0.5]["evaluation"]["proof_attempts"] >= 2
        assert found[1e-4]["evaluation"]["drop"] == 0.0


@pytest.mark.slow
@pytest.mark.usefixtures("rounded_is_lean")
def test_plans_that_memory_scored_and_refused_are_counted(tmp_path: Path) -> None:
    """The plan in bf16 passes on the samples that search, for they are all zero."""
    layers(tmp_path)
    samples = np.random.default_rng(3).standard_normal((80, 4, 64)).astype(np.float32)
    samples[:40] = 0.0
    np.savez(tmp_path / "inputs.npz", r0=samples)
    artifact = collage.tune(
        tmp_path / "layers.onnx",
        ["simulated -precision=f32 -speedup=2", "simulated -precision=bf16 -speedup=1"],
        output=tmp_path / "tuned.onnx",
        inputs=tmp_path / "inputs.npz",
        database=f"sqlite:///{tmp_path / 'c.db'}",
        time_limit_s=10.0,
        objective="memory",
        evaluate="top1",
        max_drop=1e-4,
    )
    report = artifact.report
    refused = [each["failure"] for each in report["objective"]["settings"] if "failure" in each]
    assert any("on 40 samples" in reason for reason in refused), refused
    assert all("-precision=f32" in part["target"] for part in report["partitions"])
    assert report["evaluation"]["drop"] == 0.0 and report["evaluation"]["proof_attempts"] >= 2


@pytest.fixture
def only_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one setting with calls of four requests is measured."""
    real = objective_module.settings

    def settings(*given: Any, **named: Any) -> list[Setting]:
        return [replace(real(*given, **named)[0], rows=ROWS)]

    monkeypatch.setattr(objective_module, "settings", settings)
    monkeypatch.setattr("collage.tuning.objectives.rows.row_counts", lambda *_: [ROWS])
    monkeypatch.setattr(
        "collage.tuning.objectives.rows._LEAST_S", -3600.0
    )  # however busy the machine is


@pytest.mark.slow
@pytest.mark.usefixtures("only_rows")
def test_calls_of_several_requests_are_measured_written_and_served(tmp_path: Path) -> None:
    artifact = tuned(tmp_path, objective="throughput")
    (ours,) = artifact.report["objective"]["settings"]
    assert ours["chosen"] and ours["rows"] == ROWS and ours["throughput_per_s"] > 0
    assert artifact.plan["instances"]["rows"] == ROWS
    rows = np.random.default_rng(0).standard_normal((3, WIDTH), np.float32)
    with collage.load(artifact.path, cache_dir=False) as session:
        assert session.rows == ROWS and session.get_inputs()[0].shape == (None, WIDTH)
        together = session.run(None, {"x": rows})[0]
        futures = [session.run_async(None, {"x": rows[i : i + 1]}) for i in range(3)]
        apart = np.concatenate([each.result(60)[0] for each in futures])
        np.testing.assert_allclose(together, apart, atol=1e-5)
        np.testing.assert_allclose(together, plain(tmp_path, rows), atol=1e-4)
        for wrong in (rows[:0], np.concatenate([rows, rows]), rows[0], rows[:, 1:]):
            with pytest.raises(BadInputError, match="with 1 to 4 rows"):
                session.run(None, {"x": wrong})
        with pytest.raises(BadInputError, match="keeps no state"):
            session.bind_output_to_input("x4", "x")
    with pytest.raises(BadInputError, match="closed"):
        session.run(None, {"x": rows})
    # It is not known for the model as it was given.
    assert tuned(tmp_path, objective="throughput").report["known_since"] is None


@pytest.mark.skipif(default_threads() < 2, reason="a pipeline needs two cores")
@pytest.mark.slow
def test_pipeline_is_measured_written_and_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tuned(tmp_path)
    (whole,) = first.plan["partitions"]
    nodes = whole["nodes"]
    halves = [
        {"target": "onnxruntime", "nodes": nodes[:4]},
        {"target": "onnxruntime -threads=1", "nodes": nodes[4:]},
    ]
    real = objective_module.settings

    def settings(*given: Any, **named: Any) -> list[Setting]:
        return [each for each in real(*given, **named) if each.stages][:1]

    monkeypatch.setattr(objective_module, "settings", settings)
    plan = {**first.plan, "partitions": halves}
    artifact = tuned(tmp_path, plan=plan, strategy="optimal", objective="throughput", time_limit_s=60.0)
    (ours,) = artifact.report["objective"]["settings"]
    assert ours["chosen"] and ours["stages"] == [1, 1] and ours["instances"] == 3
    assert artifact.plan["instances"]["stages"] == [1, 1]
    ReportView.model_validate_json(
        ReportView(**read_report(artifact.path)).model_dump_json(by_alias=True)
    )
    rows = np.random.default_rng(0).standard_normal((4, WIDTH), np.float32)
    with collage.load(artifact.path, cache_dir=False) as session:
        futures = [session.run_async(None, {"x": rows[i : i + 1]}) for i in range(4)]
        made = np.concatenate([each.result(60)[0] for each in futures])
    np.testing.assert_allclose(made, plain(tmp_path, rows), atol=1e-4)
    monkeypatch.undo()
    again = tuned(tmp_path, plan=artifact.plan, strategy="optimal")
    assert again.plan["instances"] == artifact.plan["instances"]


def plain(folder: Path, rows: np.ndarray) -> np.ndarray:
    """What ONNX Runtime computes of each row of the model that was given."""
    model = folder / "given.onnx"
    made = [run_reference(model, {"x": rows[i : i + 1]}, ["x4"])["x4"] for i in range(len(rows))]
    return np.concatenate(made)


@pytest.mark.slow
def test_weights_of_several_goals_are_tuned_for(tmp_path: Path) -> None:
    artifact = tuned(tmp_path, objective="memory=2,throughput=3,latency=5")
    objective = artifact.report["objective"]
    assert objective["name"] == "latency=0.5,throughput=0.3,memory=0.2"
    ran = [each for each in objective["settings"] if "failure" not in each]
    assert {each["instances"] for each in ran} >= {1}
    assert sum(each["chosen"] for each in ran) == 1
    assert any(each["on_front"] for each in ran)
    ReportView.model_validate_json(
        ReportView(**read_report(artifact.path)).model_dump_json(by_alias=True)
    )


@pytest.mark.slow
def test_a_bound_that_nothing_keeps_is_told(tmp_path: Path) -> None:
    artifact = tuned(tmp_path, objective="throughput", p99_ms=1e-6)
    assert artifact.report["objective"]["met"] is False
    assert any("no setting keeps the bound of 1e-06 ms" in each for each in artifact.report["warnings"])


@pytest.mark.slow
def test_every_report_tells_memory_load_time_and_size(tmp_path: Path) -> None:
    artifact = tuned(tmp_path)
    assert artifact.report["objective"] == {
        "name": "latency",
        "p99_ms": None,
        "max_latency_ms": None,
        "met": None,
        "settings": [],
    }
    footprint = artifact.report["footprint"]
    weights = 4 * 4 * 64 * 64
    assert weights < footprint["size_bytes"] < 2 * weights
    assert footprint["peak_rss_bytes"] > 1 << 20 and footprint["load_s"] > 0
    assert "instances" not in artifact.plan


@pytest.mark.slow
@pytest.mark.usefixtures("one_row")
def test_a_known_tuning_for_throughput_is_known_with_its_instances(tmp_path: Path) -> None:
    first = tuned(tmp_path, objective="throughput", strategy="optimal")
    again = tuned(tmp_path, objective="throughput", strategy="optimal")
    assert again.report["known_since"] is not None
    assert again.plan["instances"] == first.plan["instances"]
    assert again.report["objective"] == first.report["objective"]
    other = tuned(tmp_path, objective="memory", strategy="optimal")
    assert other.report["known_since"] is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"p99_ms": 5.0}, "p99_ms bounds throughput"),
        ({"objective": "memory", "p99_ms": 5.0}, "p99_ms bounds throughput"),
        ({"max_latency_ms": 5.0}, "max_latency_ms bounds memory"),
        ({"objective": "throughput", "max_latency_ms": 5.0}, "max_latency_ms bounds memory"),
        ({"objective": "throughput", "p99_ms": 0.0}, "greater than 0"),
        ({"objective": "throughput", "p99_ms": "5"}, "valid number"),
        ({"objective": "speed"}, "'latency', 'throughput' or 'memory'"),
        ({"objective": "latency=1,memory=1", "p99_ms": 5.0}, "p99_ms bounds throughput"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionsError, match=said):
        TuneOptions.from_json(wrong)


def test_known_tunings_for_latency_stay_known() -> None:
    later = {"objective", "p99_ms", "max_latency_ms"}
    assert not later & _chosen(TuneOptions()).keys()
    chosen = _chosen(TuneOptions(objective="throughput", p99_ms=3.0))
    assert (chosen["objective"], chosen["p99_ms"]) == ("throughput", 3.0)


@pytest.mark.slow
def test_settings_that_there_was_no_time_for_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objective_module, "_fits", lambda refined: lambda: False)
    artifact = tuned(tmp_path, objective="throughput")
    (ours,) = artifact.report["objective"]["settings"]
    assert ours["chosen"]
    told = r"there was no time for \d+ of \d+ settings of several requests; allow more with"
    assert any(re.match(told, text) for text in artifact.report["warnings"])


def test_no_trial_begins_that_leaves_no_time_for_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial builds the instances that writing builds once more."""
    now_s = 0.0
    monkeypatch.setattr(objective_module.time, "monotonic", lambda: now_s)
    run = SimpleNamespace(written_by_s=130.0)
    refined = SimpleNamespace(run=run, objective_end_s=100.0, emit_s=5.0)
    fits = objective_module._fits(cast(Refined, refined))
    assert fits()
    now_s = 40.0
    assert fits()  # it ends at 80 s, and writing at 125 s
    now_s = 65.0
    assert not fits()  # it ends at 97.5 s, and writing at 142.5 s

"""Tuning for throughput and memory: what is measured, chosen, reported, and remembered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import collage
from collage.artifact.artifact import read_report
from collage.backends.machine.process_policy import default_threads
from collage.options import OptionsError, TuneOptions
from collage.service.report_models import ReportView
from collage.tuning.tuning_cache import _chosen
from tests.collage.artifact.test_instances import chain


def tuned(folder: Path, **options: Any) -> collage.Artifact:
    chain(folder)
    return collage.tune(
        folder / "given.onnx",
        ["onnxruntime"],
        output=folder / "tuned.onnx",
        database=f"sqlite:///{folder / 'c.db'}",
        **{"strategy": "single", "time_limit_s": 10.0, **options},
    )


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
    ReportView.model_validate_json(ReportView(**read_report(artifact.path)).model_dump_json())
    again = tuned(tmp_path, plan=artifact.plan, strategy="optimal")
    assert again.plan["instances"] == artifact.plan["instances"]


def test_for_memory_there_is_one_instance(tmp_path: Path) -> None:
    artifact = tuned(tmp_path, objective="memory", max_latency_ms=60_000.0)
    objective = artifact.report["objective"]
    assert objective["met"] and objective["max_latency_ms"] == 60_000.0
    assert {each["instances"] for each in objective["settings"]} == {1}


def test_weights_of_several_goals_are_tuned_for(tmp_path: Path) -> None:
    artifact = tuned(tmp_path, objective="memory=2,throughput=3,latency=5")
    objective = artifact.report["objective"]
    assert objective["name"] == "latency=0.5,throughput=0.3,memory=0.2"
    ran = [each for each in objective["settings"] if "failure" not in each]
    assert {each["instances"] for each in ran} >= {1}
    assert sum(each["chosen"] for each in ran) == 1
    assert any(each["on_front"] for each in ran)
    ReportView.model_validate_json(ReportView(**read_report(artifact.path)).model_dump_json())


def test_a_bound_that_nothing_keeps_is_told(tmp_path: Path) -> None:
    artifact = tuned(tmp_path, objective="throughput", p99_ms=1e-6)
    assert artifact.report["objective"]["met"] is False
    assert any("no setting keeps the bound of 1e-06 ms" in each for each in artifact.report["warnings"])


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

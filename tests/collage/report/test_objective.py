"""What a tuning for throughput or memory says, and its picture."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from collage.cli.tables import show_settings
from collage.report.objective import at_once, chosen, draw_settings, measured, rate, sentence
from collage.report.verdict import verdict
from collage.service.pages.answer import banner, settings_picture


def setting(name: str, per_s: float, *, instances: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "targets": [name],
        "partitions": 1,
        "instances": instances,
        "threads": 2 // instances,
        "throughput_per_s": per_s,
        "median_us": 1e6 * instances / per_s,
        "p99_us": 2e6 * instances / per_s,
        "requests": 100,
        "peak_rss_bytes": 200 << 20,
        "load_s": 1.0,
        "on_front": True,
        "chosen": False,
        **more,
    }


def report(name: str = "throughput", met: bool = True) -> dict[str, Any]:
    settings = [
        setting("openvino", 150.0, instances=2, chosen=True, peak_rss_bytes=100 << 20),
        setting("openvino", 110.0),
        setting("onnxruntime", 100.0, on_front=False),
        {
            "name": "mnn",
            "targets": ["mnn"],
            "partitions": 1,
            "instances": 1,
            "threads": 2,
            "failure": "x",
        },
    ]
    objective = {"name": name, "p99_ms": None, "max_latency_ms": None, "met": met, "settings": settings}
    return {
        "objective": objective,
        "partitions": [{"target": "openvino"}],
        "targets": ["openvino", "onnxruntime"],
        "max_relative_error": None,
        "tolerance": 1e-3,
        "metric": "max",
        "latency_us": 9000.0,
        "baselines": [],
        "plans": [],
        "search": None,
    }


def test_the_verdict_is_about_the_objective() -> None:
    said = verdict(report()).sentence
    assert said == (
        "OpenVINO is returned for throughput, 2 requests at once, 1 thread each: 150 requests/s, median 13.3 ms, "
        "p99 26.7 ms, 100 MiB; 1.50 × the throughput of the best other single target (onnxruntime)."
    )
    assert "0.50 × the memory of the best other single target" in verdict(report("memory")).sentence
    assert "no setting keeps the bound" in verdict(report(met=False)).sentence


@pytest.mark.parametrize(
    "without", [{}, {"objective": None}, {"objective": {"name": "latency", "settings": []}}]
)
def test_reports_for_latency_say_nothing_of_settings(without: Mapping[str, Any]) -> None:
    assert sentence(without) is None and chosen(without) is None and measured(without) == []


def test_the_page_has_a_headline_and_a_picture() -> None:
    assert banner(report()).headline == "150 requests per second, 2 requests at once, 1 thread each"
    assert banner(report()).tone == "good" and banner(report(met=False)).tone == "warn"
    assert settings_picture(report()) is not None
    assert settings_picture({**report(), "objective": None}) is None


def test_the_picture_has_a_point_for_each_setting_and_escapes_names() -> None:
    names = "single 'a' <b> & \"c\""
    settings = [*measured(report()), setting(names, 10.0)]
    root = ElementTree.fromstring(draw_settings(settings))
    points = [each for each in root.iter() if each.tag.endswith("circle")]
    assert len(points) == 4
    assert [point.get("stroke") for point in points] == ["#b00", None, None, None]
    assert points[-1][0].text is not None and names in points[-1][0].text
    for point in points:
        assert 0 < float(point.get("cx", "0")) < 640 and 0 < float(point.get("cy", "0")) < 400


def test_numbers_read_well() -> None:
    assert rate({"throughput_per_s": 3941.2}) == "3941" and rate({"throughput_per_s": 1.2345}) == "1.23"
    assert at_once({"instances": 1, "threads": 2}) == "1 request at a time, 2 threads each"


def test_rows_and_stages_are_said_and_drawn() -> None:
    joined = setting("openvino", 100.0, rows=8)
    line = setting("mix", 90.0, stages=[1, 2], instances=2)
    assert at_once(joined) == "8 requests a call, 1 call at once, 2 threads each"
    assert at_once(line) == "a pipeline of 2 stages, 1 thread each"
    drawn = draw_settings([joined, line])
    table = io.StringIO()
    show_settings(Console(width=100, file=table), [joined, line])
    for told in (drawn, table.getvalue()):
        assert "1 × 2 × 8 rows" in told and "2 × 1, 2 stages" in told


def test_weights_compare_with_the_best_other_single_target() -> None:
    said = sentence(report("throughput=0.5,memory=0.5"))
    assert said is not None
    # 1.5 times the throughput with half the memory: the square root of 1.5 × 2.
    assert "1.73 × as good by these weights of the best other single target (onnxruntime)" in said

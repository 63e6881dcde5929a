"""The answer in words, the plans with their intervals, and jobs side by side."""

from __future__ import annotations

from collage.report.shapes import class_texts, memory_text
from collage.service.http.html import _environment, render
from collage.service.jobs.kinds import summary_of
from collage.service.pages.answer import banner, plan_bars
from collage.service.pages.comparison import moved, option_rows, plan_rows
from collage.service.pages.diagnosis import diagnosis_banner
from tests.collage.report.reports import shapes_report
from tests.service.pages.made_diagnoses import diagnosis, slow_diagnosis
from tests.service.pages.made_jobs import report

_SLOW = {"target": "onnxruntime", "latency_us": 3000.0, "latency_interval_us": [2900.0, 3100.0]}


def _single(low_us: float, high_us: float) -> dict[str, object]:
    other = {
        "target": "openvino",
        "latency_us": (low_us + high_us) / 2,
        "latency_interval_us": [low_us, high_us],
    }
    only = [{"target": "mnn", "nodes": ["n0"], "latency_us": 1.0}]
    return report(partitions=3, baselines=[other, _SLOW]) | {"partitions": only}


def test_a_mix_that_wins_has_a_good_banner() -> None:
    said = banner(report())
    assert said.tone == "good" and said.warning is None
    assert said.headline == "2.00 × as fast as ONNX Runtime, 1.13 × the best single target, OpenVINO"


def test_a_mix_that_is_not_proven_has_a_warning() -> None:
    near = {"target": "openvino", "latency_us": 1550.0, "latency_interval_us": [1450.0, 1650.0]}
    said = banner(report(baselines=[near]))
    assert said.tone == "warn" and said.headline.startswith("Not proven faster than OpenVINO")
    assert said.warning is not None


def test_a_single_target_that_wins_is_named() -> None:
    said = banner(_single(1700.0, 1800.0))
    assert (said.tone, said.headline) == ("same", "No mix wins: use MNN")


def test_a_returned_plan_that_is_slower_says_so() -> None:
    said = banner(_single(500.0, 600.0))
    assert said.tone == "warn" and said.headline == "Slower than OpenVINO: MNN is returned"


def test_plans_are_sorted_and_have_intervals() -> None:
    bars = plan_bars(report())
    assert [bar.name for bar in bars] == [
        "searched 1",
        "single openvino",
        "single onnxruntime",
        "single mnn",
    ]
    assert bars[0].is_returned and (bars[0].low_us, bars[0].high_us) == (1480.0, 1520.0)
    assert (bars[1].low_us, bars[1].high_us) == (1650.0, 1750.0)
    assert bars[3].reason == "node n7: int64 inputs are not taken"


def test_other_plans_have_the_interval_of_their_ratio() -> None:
    plan = {
        "name": "searched 2",
        "partitions": 2,
        "targets": ["openvino", "mnn"],
        "latency_us": 2000.0,
        "speedup_over_best_single": 0.85,
        "speedup_interval": [0.8, 0.9],
    }
    bar = next(bar for bar in plan_bars(report(plans=[plan])) if bar.name == "searched 2")
    assert bar.low_us is not None and bar.high_us is not None
    assert round(bar.low_us) == 1889 and round(bar.high_us) == 2125


def test_the_chart_escapes_and_says_what_could_not_run() -> None:
    baselines = [{"target": "mnn", "infeasible": "no <int64> inputs"}]
    page = '{% from "chart.html" import plan_chart %}{{ plan_chart(plans) }}'
    bars = plan_bars(report(plans=[], baselines=baselines))
    chart = _environment.from_string(page).render(plans=bars)
    assert chart.count("<rect") == 3 and chart.count('class="whisker"') == 1
    assert "1.50 ms" in chart and "no &lt;int64&gt; inputs" in chart


def test_options_that_differ_are_marked() -> None:
    rows = option_rows([{"tolerance": 0.1, "seed": 1}, {"seed": 1}])
    assert rows == [("seed", [1, 1], False), ("tolerance", [0.1, None], True)]


def test_plans_of_two_jobs_stand_side_by_side() -> None:
    rows = plan_rows([report(), None, report(plans=[])])
    cells = {name: found for name, _, found in rows}
    assert [cell is not None for cell in cells["searched 1"]] == [True, False, False]
    assert [cell is not None for cell in cells["single openvino"]] == [True, False, True]


def test_nodes_that_moved_are_grouped() -> None:
    groups = moved([report(partitions=3), report(partitions=2)])
    assert [(group.targets, group.count) for group in groups] == [
        (("mnn", "openvino"), 10),
        (("openvino", "onnxruntime"), 5),
    ]
    assert moved([report(), report()]) == [] and moved([report(), None]) == []


def test_a_range_of_shapes_has_a_banner_and_a_row_for_each() -> None:
    found = shapes_report()
    said = banner(report(shapes=found))
    assert (said.tone, said.headline) == (
        "good",
        "One artifact for length 16..512: 1.25 × the best single runtime",
    )
    text = render(
        "shapes.html",
        report={"shapes": found},
        class_texts=class_texts(found),
        memory_text=memory_text(found),
    )
    assert text.count("<tr>") == 1 + len(found["rows"])
    assert "class 1 (length above 40): openvino" in text and "onnxruntime 150 MiB" in text


def test_a_target_is_not_called_right_where_not_all_ran() -> None:
    faults = slow_diagnosis()["faults"]
    none = diagnosis_banner(diagnosis(faults={**faults, "regions": []}))
    assert none.tone == "warn" and "takes no node" in none.sentence
    regions = [*faults["regions"], {"nodes": 3, "outcome": "not tried"}]
    left = diagnosis_banner(diagnosis(faults={**faults, "regions": regions}))
    assert left.tone == "warn" and "1 of 2 regions was not tried" in left.sentence
    right = diagnosis_banner(slow_diagnosis())
    assert "slow in one region" in right.headline
    reports = (diagnosis(faults={**faults, "regions": regions}), slow_diagnosis())
    assert [summary_of("diagnose", each)["is_right"] for each in reports] == [False, True]


def test_regions_that_were_not_timed_are_not_called_fast() -> None:
    speed = {**slow_diagnosis()["speed"], "regions": []}
    note = "not in blocks: MNN refuses one"
    timed, not_timed = (slow_diagnosis() | {"speed": each} for each in (speed, {**speed, "note": note}))
    assert diagnosis_banner(timed).headline.endswith(", and no region is slow")
    assert diagnosis_banner(not_timed).headline.endswith("is right on every node")

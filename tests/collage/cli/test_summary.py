"""What a tuning run ends with."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage.cli.summary import labeled, show_result
from collage.cli.tables import show_targets
from tests.collage.report.reports import plan, report

ORT, OV, MNN, NCNN = "onnxruntime", "openvino", "mnn", "ncnn"


def _shown(capsys: pytest.CaptureFixture[str], *, verbose: bool = False, **fields: object) -> list[str]:
    mix = plan("searched 1", [OV, MNN], 0.9)
    baselines = {ORT: 2.0, OV: 1.0, MNN: 3.0, NCNN: "ncnn: refuses Loop"}
    show_result(report([OV], baselines, plans=[mix], **fields), Path("m.collage.onnx"), verbose=verbose)
    return capsys.readouterr().out.splitlines()


def test_answer_is_first_and_next_steps_last(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.rstrip() for line in _shown(capsys) if line.strip()]
    assert lines[0] == "OpenVINO alone is the fastest: 2.00 × ONNX Runtime; no mix was faster."
    assert [line.split("  ")[0] for line in lines[2:6]] == [
        "ours: openvino",
        "best mix: 2 partitions (mnn, openvino)",
        "onnxruntime",
        "mnn",
    ]
    assert lines[-1].strip().startswith("collage bench m.collage.onnx")


def test_target_that_is_not_compared_tells_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _shown(capsys)
    assert "ncnn alone is not compared: ncnn: refuses Loop" in lines


def test_warnings_are_told_and_notes_only_when_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    told = ["integers were calibrated on seeded inputs", "openvino: region: intervals were thinned"]
    short, long = (
        [line for line in _shown(capsys, verbose=verbose, warnings=told) if "warning" in line]
        for verbose in (False, True)
    )
    assert len(short) == 1 and "calibrated" in short[0]
    assert len(long) == 2 and "thinned" in long[1]


def test_doubt_about_the_verdict_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    show_result(report([OV, MNN], {ORT: 1.6, OV: 1.005}), Path("m.collage.onnx"))
    assert "warning: the plan is not proven faster than OpenVINO alone" in capsys.readouterr().out


def test_known_result_says_since_when(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _shown(capsys, known_since="2026-01-02T03:04:05+00:00")
    assert any("2026-01-02" in line and "--fresh" in line for line in lines)


def test_it_fits_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _shown(capsys)
    assert len(lines) <= 20 and max(map(len, lines)) <= 100


def test_targets_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    here = {"name": "here", "available": True, "version": "1.2-3-g4 (x)", "summary": "s" * 200}
    missing = {"name": "gone", "available": False, "summary": "t", "how_to_install": "pip install gone"}
    show_targets([here, missing])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("here  1.2 ") and len(lines[0]) <= 120
    assert "pip install gone" in lines[1]


def test_an_early_end_is_a_note_and_no_warning() -> None:
    assert labeled("ended early: openvino is far ahead").startswith("note: ended early")
    assert labeled("the time limit left out: the search").startswith("warning: ")

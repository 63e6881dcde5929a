"""Tables of artifacts with free dimensions."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage.cli.shape_tables import show_shape_bench
from collage.cli.summary import show_result
from collage.report.shapes import not_told, sentence
from tests.collage.report.reports import report, shape_row, shapes_report

ORT, OV = "onnxruntime", "openvino"


def test_the_answer_compares_means_overshapes_report() -> None:
    assert sentence(shapes_report()) == (
        "2 plans for length 16..512: 2.000 ms in the mean over shapes, 1.25 × OpenVINO, 1.75 × ONNX Runtime, each "
        "compiled for any shape."
    )


def test_the_summary_has_a_row_for_each_shape(capsys: pytest.CaptureFixture[str]) -> None:
    shown = report([OV], {ORT: 2.0, OV: 1.0}, shapes=shapes_report())
    show_result(shown, Path("m.onnx"))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    (first,) = (i for i, line in enumerate(lines) if line.split()[:2] == ["length", "weight"])
    rows = [line.split() for line in lines[first + 1 : first + 3]]
    assert [row[0] for row in rows] == ["16", "512"]
    assert rows[1][3] == "3"
    assert "class 0 (length up to 40): onnxruntime, compiled once for any shape" in lines
    assert (
        "class 1 (length above 40): openvino, compiled once for any shape; from request 84 of a shape on openvino, "
        "compiled for it alone in 0.25 s"
    ) in lines
    assert "memory of a process that ran all shapes: ours 300 MiB, onnxruntime 150 MiB" in lines


def test_a_bench_tells_what_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    row = shape_row(16, 1.0, {ORT: (None, 900.0)})
    failed = {**row, "latency_us": None, "infeasible": "no memory"}
    show_shape_bench({"shapes": [failed], "warnings": ["the machine is busy"]})
    shown = capsys.readouterr().out
    assert "class 0 cannot run: no memory" in shown
    assert "note: the machine is busy" in shown
    assert "–" in shown


def test_warnings_that_differ_in_numbers_alone_are_told_once() -> None:
    more = ["3 of 4 cores were busy", "1.5 of 4 cores were busy", "another", "20 of 4 cores were busy"]
    assert not_told((), more) == ["3 of 4 cores were busy", "another"]
    assert not_told(["0.1 of 2 cores were busy"], more) == ["another"]

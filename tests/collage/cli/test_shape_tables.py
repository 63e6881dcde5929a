"""Tables of artifacts with free dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collage.cli.shape_tables import sentence, show_shape_bench
from collage.cli.summary import show_result
from tests.collage.report.reports import report

ORT, OV = "onnxruntime", "openvino"


def _row(
    length: int, ours: float, singles: dict[str, tuple[float | None, float]], number: int = 0
) -> dict[str, Any]:
    return {
        "sizes": {"length": length},
        "weight": 0.5,
        "class": number,
        "latency_us": ours,
        "hot_latency_us": ours / 2 if number else None,
        "infeasible": None,
        "singles": [
            {"target": name, "any_shape_us": any_us, "this_shape_us": alone_us, "failure": None}
            for name, (any_us, alone_us) in singles.items()
        ],
    }


def _shapes() -> dict[str, Any]:
    rows = [
        _row(16, 1000.0, {ORT: (1000.0, 900.0), OV: (2000.0, 800.0)}),
        _row(512, 3000.0, {ORT: (6000.0, 6100.0), OV: (3000.0, 2900.0)}, 1),
    ]
    hot = {
        "partitions": 1,
        "targets": [OV],
        "treatment": "exact",
        "compile_s": 0.25,
        "from_request": 84,
    }
    one = {"partitions": 1, "treatment": "dynamic", "hot": None}
    return {
        "dims": {"length": "16..512"},
        "main": 1,
        "most_copies": 32,
        "classes": [
            {**one, "up_to": 40, "targets": [ORT]},
            {**one, "up_to": None, "targets": [OV], "hot": hot},
        ],
        "rows": rows,
        "weighted": {
            "latency_us": 2000.0,
            "singles": [
                {"target": ORT, "any_shape_us": 3500.0, "this_shape_us": None},
                {"target": OV, "any_shape_us": 2500.0, "this_shape_us": None},
            ],
        },
        "rss_bytes": {"ours": 300 << 20, ORT: 150 << 20},
    }


def test_the_answer_compares_means_over_shapes() -> None:
    assert sentence(_shapes()) == (
        "2 plans for length 16..512: 2.000 ms in the mean over shapes, 1.25 × OpenVINO, 1.75 × ONNX Runtime, each "
        "compiled for any shape."
    )


def test_the_summary_has_a_row_for_each_shape(capsys: pytest.CaptureFixture[str]) -> None:
    shown = report([OV], {ORT: 2.0, OV: 1.0}, shapes=_shapes())
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
    row = _row(16, 1.0, {ORT: (None, 900.0)})
    failed = {**row, "latency_us": None, "infeasible": "no memory"}
    show_shape_bench({"shapes": [failed], "warnings": ["the machine is busy"]})
    shown = capsys.readouterr().out
    assert "class 0 cannot run: no memory" in shown
    assert "note: the machine is busy" in shown
    assert "–" in shown

"""Classes against one plan for all where each call has another shape, by stated times."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import onnx.parser
import pytest

from collage.backends.sandbox.run import ChildFailed
from collage.model.sub_models import RegionFiles
from collage.partitioner.graph.model import Model
from collage.shapes.space import parse_dims
from collage.shapes.traffic import Traffic
from collage.tuning.run import Run
from collage.tuning.shapes.changing import proven_by_changing
from collage.tuning.shapes.choice import ChosenClass, choose_classes
from collage.tuning.time_left import NO_LIMIT, TimeLeft
from tests.collage.tuning.shapes.stated import shapes

_TEXT = """<ir_version: 10, opset_import: ["" : 17]>
    g (float[N] x) => (float[N] y) { [a] h = Relu(x) [b] y = Relu(h) }"""


def _proven(
    tmp_path: Path,
    spent: list[list[float]] | None,
    traffic: Traffic,
    left: TimeLeft = NO_LIMIT,
) -> tuple[Sequence[ChosenClass], str | None, list[Any]]:
    """What becomes of the fastest plan at repeated shapes where calls take so long, by choice; None for no call."""
    asked: list[Any] = []

    def run(function: Any, choices: Sequence[Any], *_: Any, **__: Any) -> list[list[float]]:
        asked.extend(choices)
        if spent is None:
            raise ChildFailed("crash", "signal 11")
        return (spent + [[1e9] * len(spent[0])] * len(choices))[: len(choices)]

    runner = SimpleNamespace(alone=lambda cancel: contextlib.nullcontext(), run=run)
    stated = cast(Run, SimpleNamespace(runner=runner, work_dir=tmp_path, cancel=None))
    us = {"null": 10.0, "simulated": 20.0, "onnxruntime": 30.0}
    timed = shapes({16: 0.5, 512: 0.5}, lambda name, size: us[name])
    for at in timed:
        at.sampling = cast(Any, SimpleNamespace(threads=1, inputs=None))
        at._timer.plan_s = 1.0
    classes = choose_classes(timed)
    assert [str(one.plan.targets[0]) for one in classes] == ["null"]
    onnx.save(onnx.parser.parse_model(_TEXT), tmp_path / "free.onnx")
    regions = RegionFiles(Model.open(tmp_path / "free.onnx"), tmp_path / "regions", mapped=True)
    found, note = proven_by_changing(stated, regions, traffic, timed, classes, 1.0, left)
    return found, note, asked


def _said(text: str) -> Traffic:
    return Traffic(parse_dims({"N": text}).dims)


def _seen(sizes: Sequence[int], logged: float | None = None) -> Traffic:
    text = f"{min(sizes)}..{max(sizes)}"
    return Traffic(parse_dims({"N": text}).dims, [({"N": size}, 1.0) for size in sizes], logged)


@pytest.mark.parametrize(
    ("ours", "other", "target"),
    [
        ([50.0] * 8, [20.0] * 8, "simulated"),
        ([20.0] * 8, [20.0] * 8, "null"),
        # A runtime refuses a size of the range.
        ([20.0] * 7 + [math.inf], [90.0] * 8, "simulated"),
        # It is faster in one half of the calls only.
        ([20.0] * 4 + [90.0] * 4, [20.0] * 8, "null"),
    ],
)
def test_a_plan_that_is_faster_at_changing_shapes_wins(
    tmp_path: Path, ours: list[float], other: list[float], target: str
) -> None:
    found, note, asked = _proven(tmp_path, [ours, other], _said("16..512"))
    assert len(asked) == 3
    assert [str(one.plan.targets[0]) for one in found] == [target]
    assert (note is not None) == (target != "null")


@pytest.mark.parametrize(
    "traffic",
    [
        _said("16,512"),
        _said("16..40"),
        _seen([16, 64, 512]),
        # Many sizes, of which each comes many times in a row.
        _seen(range(16, 512), logged=1.0),
    ],
)
def test_where_sizes_come_again_nothing_is_tried(tmp_path: Path, traffic: Traffic) -> None:
    found, note, asked = _proven(tmp_path, None, traffic)
    assert (len(found), note, asked) == (1, None, [])


@pytest.mark.parametrize(
    "traffic",
    [_said("16..512"), _said(",".join(map(str, range(16, 216)))), _seen(range(16, 216))],
)
def test_many_sizes_change_however_they_are_said(tmp_path: Path, traffic: Traffic) -> None:
    found, note, _ = _proven(tmp_path, [[50.0] * 8, [20.0] * 8], traffic)
    assert [str(one.plan.targets[0]) for one in found] == ["simulated"]
    assert note is not None and "there simulated takes 0.02 ms in the mean" in note


@pytest.mark.parametrize(("repeated", "target"), [(0.2, "simulated"), (0.9, "null")])
def test_what_repeats_counts_by_its_share(tmp_path: Path, repeated: float, target: str) -> None:
    """At sizes that repeat the first plan takes 10, the other 20; at new ones 60 and 20."""
    traffic = _seen(range(16, 216), logged=repeated)
    found, note, _ = _proven(tmp_path, [[60.0] * 8, [20.0] * 8], traffic)
    assert [str(one.plan.targets[0]) for one in found] == [target]
    assert note is None or note.startswith("80% of the requests have a size that did not come lately")


@pytest.mark.parametrize(("left_s", "count"), [(9.0, 3), (2.5, 2), (1.5, 0)])
def test_as_many_plans_run_at_changing_sizes_as_there_is_time(
    tmp_path: Path, left_s: float, count: int
) -> None:
    left = TimeLeft(0.0, 10.0, clock=lambda: 20.0 - left_s)
    _, _, asked = _proven(tmp_path, [[50.0] * 8, [20.0] * 8], _said("16..512"), left)
    assert len(asked) == count
    assert bool(left.warnings) == (count == 0)


def test_a_crash_at_changing_sizes_keeps_the_classes_and_is_told(tmp_path: Path) -> None:
    found, note, _ = _proven(tmp_path, None, _said("16..512"))
    assert [str(one.plan.targets[0]) for one in found] == ["null"]
    assert note == "plans could not be compared at sizes that change: signal 11"

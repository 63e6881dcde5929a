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
from collage.partitioner.graph.model import Model
from collage.shapes.space import ShapeSpace, parse_dims
from collage.tuning.run import Run
from collage.tuning.shapes.changing import proven_by_changing, random_sizes
from collage.tuning.shapes.choice import ChosenClass, choose_classes
from tests.collage.tuning.shapes.stated import shapes

_TEXT = """<ir_version: 10, opset_import: ["" : 17]>
    g (float[N] x) => (float[N] y) { [a] h = Relu(x) [b] y = Relu(h) }"""


def _proven(
    tmp_path: Path, spent: list[list[float]] | None, space: ShapeSpace
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
        at.sampling = cast(Any, SimpleNamespace(threads=1))
    classes = choose_classes(timed)
    assert [str(one.plan.targets[0]) for one in classes] == ["null"]
    onnx.save(onnx.parser.parse_model(_TEXT), tmp_path / "free.onnx")
    free = Model.open(tmp_path / "free.onnx")
    found, note = proven_by_changing(stated, free, space, timed, classes, 1.0)
    return found, note, asked


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
    found, note, asked = _proven(tmp_path, [ours, other], parse_dims({"N": "16..512"}))
    assert len(asked) == 3
    assert [str(one.plan.targets[0]) for one in found] == [target]
    assert (note is not None) == (target != "null")


def test_sizes_that_are_listed_come_again_so_nothing_is_tried(tmp_path: Path) -> None:
    found, note, asked = _proven(tmp_path, None, parse_dims({"N": "16,512"}))
    assert (len(found), note, asked) == (1, None, [])


def test_a_crash_at_changing_sizes_keeps_the_classes_and_is_told(tmp_path: Path) -> None:
    found, note, _ = _proven(tmp_path, None, parse_dims({"N": "16..512"}))
    assert [str(one.plan.targets[0]) for one in found] == ["null"]
    assert note == "plans could not be compared at sizes that change: signal 11"


def testrandom_sizes_are_those_that_are_served() -> None:
    space = parse_dims({"width": "320..640/32", "length": "0..512", "batch": "1,4"})
    drawn = random_sizes(space)
    assert drawn == random_sizes(space) and len({tuple(sizes.values()) for sizes in drawn}) > 20
    assert all(sizes[name] in dim for sizes in drawn for name, dim in space.dims.items())
    assert {sizes["batch"] for sizes in drawn} == {1, 4}

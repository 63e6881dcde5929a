"""A model is read at the sizes that are said, or at those that are proposed and told."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import onnx
import pytest

from collage.cli.tune_options import sizes
from collage.cost_db.database import CostDatabase
from collage.events import Event
from collage.options import TuneOptions
from collage.partitioner.errors import BadInputError, ModelError
from collage.tuning.read_model import explained, read_model
from collage.tuning.run import Run, TuneRequest

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, length] x) => (float[batch, length] y) { y = Relu(x) }"""
FLAT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[width] x) => (float[8, 16] y)
<int64[2] shape = {8, 16}>
{ r = Reshape(x, shape) y = Relu(r) }"""


def _read(
    folder: Path, text: str, url: str, **options: Any
) -> tuple[list[tuple[int, ...]], list[Event]]:
    """The shapes of the inputs, and the events."""
    source, work_dir = folder / "m.onnx", folder / f"work-{len(list(folder.iterdir()))}"
    onnx.save(onnx.parser.parse_model(text), source)
    work_dir.mkdir()
    events: list[Event] = []
    run = Run(CostDatabase(url), work_dir, listener=events.append)
    _, info = read_model(run, source, TuneOptions.from_json(options), 0)
    run.database.close()
    return [spec.static_shape for spec in info.inputs], events


def test_given_sizes_need_no_trial(tmp_path: Path, sqlite_url: str) -> None:
    shapes, events = _read(tmp_path, TEXT, sqlite_url, dims={"batch": 1, "length": "7"})
    assert shapes == [(1, 7)] and not events


def test_the_only_size_that_runs_is_proposed_and_told(tmp_path: Path, sqlite_url: str) -> None:
    shapes, events = _read(tmp_path, FLAT, sqlite_url)
    assert shapes == [(128,)]
    assert [event.message for event in events] == [
        "free input dimensions: x:0 (width); trying which sizes they take",
        "the model takes --dim width=128; change what does not fit",
    ]
    assert events[-1].data == {"dims": {"width": "128"}}


def test_shapes_of_one_size_are_that_size(tmp_path: Path, sqlite_url: str) -> None:
    shapes, _ = _read(tmp_path, TEXT, sqlite_url, shapes=[{"x": [2, 9]}, {"x": [2, 9]}])
    assert shapes == [(2, 9)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the model takes --dim batch=1..8 --dim length=1..512"),
        ({"dims": {"batch": 1}}, "free input dimensions: length;"),
        ({"dims": {"batch": 1, "length": "4..8"}}, "free input dimensions: length;"),
    ],
)
def test_several_sizes_name_one_that_works(
    tmp_path: Path, sqlite_url: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInputError) as raised:
        _read(tmp_path, TEXT, sqlite_url, **options)
    told = str(raised.value)
    assert message in told
    words = shlex.split(told.partition("for example ")[2].partition(";")[0])
    pasted = sizes([word for word in words if word != "--dim"])
    shapes, _ = _read(tmp_path, TEXT, sqlite_url, dims={**options.get("dims", {}), **pasted})
    assert shapes[0][0] == 1


def _explained(folder: Path, **options: Any) -> None:
    source = folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(FLAT), source)
    inputs = options.pop("inputs", None)
    request = TuneRequest(source, (), TuneOptions.from_json(options), inputs)
    with explained(request):
        raise ModelError("the reference cannot run")


def test_a_size_that_is_not_taken_explains_a_fault(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as raised:
        _explained(tmp_path, dims={"width": 100})
    assert "dimension width (axis 0 of input x): the model cannot take size 100" in str(raised.value)
    assert str(raised.value).endswith("it takes 128, so give --dim width=128")


@pytest.mark.parametrize(
    "options", [{"dims": {"width": 128}}, {"dims": {"width": 100}, "inputs": Path("x")}, {}]
)
def test_another_fault_is_told_as_it_is(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="the reference cannot run"):
        _explained(tmp_path, **options)

"""A model is read at the sizes that are said, or at those that are proposed and told."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from collage.cli.tune_options import sizes
from collage.cost_db.database import CostDatabase
from collage.events import Event
from collage.options import TuneOptions
from collage.partitioner.errors import BadInputError, ModelError
from collage.partitioner.target import Target
from collage.shapes.settle import Settled
from collage.tuning.read_model import read_model
from collage.tuning.refused_sizes import explained
from collage.tuning.run import Run, TuneRequest
from collage.tuning.stages import Ingested

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, length] x) => (float[batch, length] y) { y = Relu(x) }"""
FLAT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[width] x) => (float[8, 16] y)
<int64[2] shape = {8, 16}>
{ r = Reshape(x, shape) y = Relu(r) }"""


def _read(folder: Path, text: str, url: str, **options: Any) -> tuple[Ingested | Settled, list[Event]]:
    """What comes of reading, and the events."""
    source, work_dir = folder / "m.onnx", folder / f"work-{len(list(folder.iterdir()))}"
    onnx.save(onnx.parser.parse_model(text), source)
    work_dir.mkdir()
    events: list[Event] = []
    run = Run(CostDatabase(url), work_dir, listener=events.append)
    inputs = options.pop("inputs", None)
    request = TuneRequest(
        source, (Target.parse("onnxruntime"),), TuneOptions.from_json(options), inputs
    )
    read = read_model(run, request)
    run.database.close()
    return read, events


def _shapes(read: Ingested | Settled) -> list[tuple[int, ...]]:
    assert isinstance(read, Ingested)
    return [spec.static_shape for spec in read.info.inputs]


def test_given_sizes_need_no_trial(tmp_path: Path, sqlite_url: str) -> None:
    read, events = _read(tmp_path, TEXT, sqlite_url, dims={"batch": 1, "length": "7"})
    assert _shapes(read) == [(1, 7)] and not any("take" in event.message for event in events)


def test_the_only_size_that_runs_is_proposed_and_told(tmp_path: Path, sqlite_url: str) -> None:
    read, events = _read(tmp_path, FLAT, sqlite_url)
    assert _shapes(read) == [(128,)]
    told = [event for event in events if "take" in event.message]
    assert [event.message for event in told] == [
        "free input dimensions: x:0 (width); trying which sizes they take",
        "the model takes --dim width=128; change what does not fit",
    ]
    assert told[-1].data == {"dims": {"width": "128"}}


def test_shapes_of_one_size_are_that_size(tmp_path: Path, sqlite_url: str) -> None:
    read, _ = _read(tmp_path, TEXT, sqlite_url, shapes=[{"x": [2, 9]}, {"x": [2, 9]}])
    assert _shapes(read) == [(2, 9)]


@pytest.mark.parametrize("shape", [(2, 9), (5, 2, 9)])
def test_sample_inputs_tell_sizes(tmp_path: Path, sqlite_url: str, shape: tuple[int, ...]) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros(shape, np.float32))
    read, events = _read(tmp_path, TEXT, sqlite_url, dims={"batch": 2}, inputs=tmp_path / "x.npz")
    assert _shapes(read) == [(2, 9)]
    assert any(e.message.endswith("the sample inputs are --dim batch=2 --dim length=9") for e in events)


@pytest.mark.parametrize("arrays", [{"y": np.zeros((2, 9))}, {}])
def test_samples_of_other_inputs_tell_no_sizes(
    tmp_path: Path, sqlite_url: str, arrays: dict[str, np.ndarray]
) -> None:
    np.savez(tmp_path / "x.npz", allow_pickle=False, **arrays)
    read, _ = _read(tmp_path, TEXT, sqlite_url, inputs=tmp_path / "x.npz")
    assert isinstance(read, Settled) and read.proposed == {"batch": "1..8", "length": "1..512"}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"x": np.zeros(3)},
            "inputs: input x has rank 2 (batch, length), but the shape [3] has rank 1",
        ),
        (None, "cannot be read as .npz"),
    ],
)
def test_samples_that_do_not_fit_are_told(
    tmp_path: Path, sqlite_url: str, arrays: dict[str, np.ndarray] | None, message: str
) -> None:
    inputs = tmp_path / "x.npz"
    inputs.write_bytes(b"no samples")
    if arrays is not None:
        np.savez(inputs, allow_pickle=False, **arrays)
    with pytest.raises(BadInputError, match=re.escape(message)):
        _read(tmp_path, TEXT, sqlite_url, inputs=inputs)


@pytest.mark.parametrize("dims", [{}, {"batch": 2, "length": "2..30"}])
def test_samples_of_several_sizes_stand_for_shapes(
    tmp_path: Path, sqlite_url: str, dims: dict[str, Any]
) -> None:
    arrays = {f"{n}/x": np.zeros((2, n), np.float32) for n in (9, 20)}
    np.savez(tmp_path / "x.npz", allow_pickle=False, **arrays)
    read, _ = _read(tmp_path, TEXT, sqlite_url, dims=dims, inputs=tmp_path / "x.npz")
    assert isinstance(read, Settled)
    assert {9, 20} <= {shape.sizes["length"] for shape in read.space.shapes}
    assert read.space.dims["length"].text == ("2..30" if dims else "9..20")


def test_a_contradiction_of_an_output_is_a_warning(tmp_path: Path, sqlite_url: str) -> None:
    read, _ = _read(
        tmp_path,
        TEXT.replace("(float[batch, length] y)", "(float[length, batch] y)"),
        sqlite_url,
        shapes=[{"x": [2, 9]}],
    )
    assert isinstance(read, Ingested)
    assert "axis 0 of output y is 2 in a run where its name 'length' says 9" in read.info.warnings[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "proposed"),
    [
        ({}, {"batch": "1..8", "length": "1..512"}),
        ({"dims": {"batch": 1}}, {"length": "1..512"}),
        ({"dims": {"batch": 1, "length": "4..8"}}, {}),
    ],
)
def test_several_sizes_are_proven_and_one_is_named(
    tmp_path: Path, sqlite_url: str, options: dict[str, Any], proposed: dict[str, str]
) -> None:
    settled, events = _read(tmp_path, TEXT, sqlite_url, **options)
    assert isinstance(settled, Settled) and settled.proposed == proposed
    assert not proposed or settled.flags in events[-1].message
    words = shlex.split(settled.usual_flags)
    pasted = sizes([word for word in words if word != "--dim"])
    read, _ = _read(tmp_path, TEXT, sqlite_url, dims={**options.get("dims", {}), **pasted})
    assert _shapes(read)[0][0] == 1


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

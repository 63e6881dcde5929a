"""Which buckets are chosen, and along which dimensions requests may be padded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import pytest

from collage.model.reference import RUNTIME
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.binding import bind_sizes
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.shapes.space import parse_dims
from collage.tuning.shapes.at_shape import AtShape
from collage.tuning.shapes.buckets import _fastest_alone, chosen_buckets, paddable
from collage.tuning.shapes.choice import ChosenClass
from tests.collage.shapes import models as shape_models
from tests.collage.tuning.shapes.stated import MODEL, shapes


def _paddable(
    model: onnx.ModelProto, dims: dict[str, str], folder: Path, masks: dict[str, str]
) -> dict[str, Any]:
    onnx.save(model, folder / "source.onnx")
    space = parse_dims(dims)
    path = normalize(folder / "source.onnx", folder / "free", {}, 0, RUNTIME, list(dims)).path
    timed = [
        SimpleNamespace(
            bound=SimpleNamespace(
                shape=shape,
                model=Model.open(bind_sizes(path, folder / f"{i}", shape.sizes, RUNTIME).path),
            )
        )
        for i, shape in enumerate(space.shapes)
    ]
    found = paddable(Model.open(path), space, cast(list[AtShape], timed), masks)
    return {one.dim: (one.inputs, one.outputs, one.mask) for one in found}


def test_the_batch_is_proven_and_the_length_is_not(tmp_path: Path) -> None:
    found = _paddable(shape_models.chain(), {"batch": "2,4", "length": "4,6"}, tmp_path, {})
    assert found == {"batch": ({"x": 0}, {"y": (0, 1), "z": (0, 1)}, None)}


def test_only_the_batch_of_an_image_is_proven(tmp_path: Path) -> None:
    dims = {"batch": "2,4", "height": "8,9", "width": "8,9"}
    assert list(_paddable(shape_models.image(), dims, tmp_path, {})) == ["batch"]


def test_one_size_above_one_is_no_proof(tmp_path: Path) -> None:
    dims = {"batch": "1,4", "height": "8,9", "width": "8,9"}
    assert not _paddable(shape_models.image(), dims, tmp_path, {})


def test_a_mask_that_the_user_names_needs_no_proof(tmp_path: Path) -> None:
    dims = {"batch": "2,4", "length": "4,6"}
    found = _paddable(shape_models.chain(), dims, tmp_path, {"length": "bias"})
    assert found["length"] == ({"x": 1, "bias": 0}, {"y": (1, 1)}, "bias")


@pytest.mark.parametrize(
    ("dims", "known_us", "low", "expected"),
    [
        ("1..8", {1: 10.0, 8: 10.0}, 1, (8,)),  # padding costs nothing
        ("1,8", {1: 1.0, 8: 100.0}, 1, (1, 8)),
        ("1:0.99,8:0.01", {1: 10.0, 8: 10.2}, 1, (8,)),
        ("4..8", {4: 4.0, 8: 8.0}, 7, (7, 8)),
        ("1..8", {8: 10.0}, 1, ()),  # nothing is known of other sizes
    ],
)
def test_buckets_take_the_least_time(
    dims: str, known_us: dict[int, float], low: int, expected: tuple[int, ...]
) -> None:
    assert chosen_buckets(parse_dims({"n": dims}).dims["n"], known_us, low) == expected


def test_buckets_of_a_range_are_few_and_end_with_the_largest() -> None:
    dim = parse_dims({"n": "1..512"}).dims["n"]
    found = chosen_buckets(dim, {1: 50.0, 64: 64.0, 512: 512.0}, 1)
    assert found[-1] == 512 and 2 <= len(found) <= 8
    assert found == tuple(sorted(set(found)))


@pytest.mark.parametrize(("kind", "may_pad"), [("dynamic_int8", False), ("static_int8", True)])
def test_what_is_padded_must_not_change_how_the_rest_is_rounded(kind: str, may_pad: bool) -> None:
    target = f"onnxruntime -quant={kind}"
    plans = {
        name: Plan((Candidate(MODEL.index.all_nodes, Target.parse(text)),))
        for name, text in (("int8", target), ("float", "onnxruntime"))
    }
    timed = shapes({8: 0.5, 64: 0.5}, lambda *_: 9.0, lambda *_: 3.0, plans=plans)
    one = ChosenClass(None, plans["int8"], (0, 1))
    found = _fastest_alone(timed, one, lambda plan: True)
    assert found == (plans["int8"] if may_pad else None)

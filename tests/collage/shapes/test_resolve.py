"""What is said of dimensions, in the words of a model, and what contradicts it."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from collage.partitioner.errors import BadInputError
from collage.partitioner.ingest.model_dims import ModelDims, TensorDims
from collage.shapes.dim_text import parse_dim
from collage.shapes.resolve import flag, sizes_of, stated

MODEL = ModelDims(
    inputs=(
        TensorDims("ids", "int64", ("batch", "length")),
        TensorDims("mask", "int64", ("batch", "past + length")),
        TensorDims("cache", "float", ("batch", 4, "past", 8)),
        TensorDims("image", "float", (None, 3, None, 320)),
        TensorDims("next", "float", ("past + 1",)),
        TensorDims("rate", "int64", ()),
    ),
    outputs=(TensorDims("boxes", "float", ("found", 4)), TensorDims("kept", "int64", (None,))),
)


def test_every_way_to_name_a_dimension_means_the_same() -> None:
    said = {"ids:0": 1, "mask:0": "1", "length": "1..512", "rate": 16000, "image:1": 3, "image:2": "48"}
    found = stated(MODEL, said)
    texts = {name: dim.text for name, dim in found.dims.items()}
    assert texts == {"batch": "1", "length": "1..512", "image:2": "48"}
    assert found.values == {"rate": 16000} and found.unsaid == ("past", "image:0")
    space = found.space({"past": "0..64", "image:0": "1"})
    assert space.dims["past"].high == 64 and len(space.shapes) == 5


def test_a_derived_dimension_says_the_one_behind_it() -> None:
    found = stated(MODEL, {"past + 1": "2:0.75,9:0.25", "next:0": "2:0.75,9:0.25"})
    assert found.dims == {"past": parse_dim("past", "1:0.75,8:0.25")}


def test_shapes_of_inputs_tell_dimensions() -> None:
    shapes = [({"ids": (1, 16), "mask": (1, 21), "next": (6,)}, 3.0), ({"ids": (1, 7), "past": 5}, 1.0)]
    found = stated(MODEL, {}, shapes)
    assert [dict(sizes) for sizes, _ in found.seen] == [
        {"batch": 1, "length": 16, "past": 5},
        {"batch": 1, "length": 7, "past": 5},
    ]
    assert found.unsaid == ("image:0", "image:2")
    space = found.space({"image:0": "1", "image:2": "48"})
    assert {s.sizes["length"]: s.weight for s in space.shapes} == pytest.approx({16: 0.75, 7: 0.25})


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"lenght": 1}, "no dimension lenght; do you mean length?"),
        ({"zzz": 1}, "no dimension zzz; there are batch, length, past + length, past, image:0"),
        ({"ids:2": 1}, "ids:2: input ids has rank 2 (batch, length), so its last axis is 1"),
        ({"idz:0": 1}, "no dimension idz:0"),
        ({"image:3": 640}, "image:3 is fixed at 320 in the model and cannot become 640"),
        ({"image:3": "1..320"}, "image:3 is fixed at 320 in the model and cannot become 1..320"),
        (
            {"batch": 1, "mask:0": 2},
            "batch (axis 0 of input ids): batch=1 and mask:0=2 contradict each other",
        ),
        ({"past": 1, "past + 1": 3}, "past=1 and past + 1=3 contradict each other"),
        (
            {"past + 1": 0},
            "past + 1=0: no size of past gives axis 0 of input next that size; give past",
        ),
        ({"mask:1": 7}, "mask:1=7: axis 1 of input mask follows from length and past; give those"),
        ({"rate": "1..9"}, "rate is an input, not a dimension, so it may be given one value only"),
        (
            {"found": 9},
            "dimension found is axis 0 of output boxes: it depends on what the model computes",
        ),
        ({"kept:0": 9}, "dimension kept:0 is axis 0 of output kept"),
    ],
)
def test_what_does_not_fit_the_model_is_told(said: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError) as raised:
        stated(MODEL, said)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            [{"ids": (1, 2, 3)}],
            "input ids has rank 2 (batch, length), but the shape [1, 2, 3] has rank 3",
        ),
        ([{"image": (1, 4, 48, 320)}], "axis 1 of input image is 4, but the model fixes it at 3"),
        (
            [{"ids": (1, 2), "cache": (2, 4, 0, 8)}],
            "axis 0 of input cache is 2, but axis 0 of input ids is 1",
        ),
        ([{"ids": (1, 2), "past": 3, "mask": (1, 9)}], "with length=2, past=3 it is past + length = 5"),
        ([{"past": 3, "next": (9,)}], "axis 0 of input next is 9, but with past=3 it is past + 1 = 4"),
        (
            [{"ids": 3}],
            'ids is an input of shape (batch, length); give its whole shape, such as {"ids": [1, 1]}',
        ),
        ([{"idz": (3,)}], "the model has no input idz; it has ids, mask"),
        ([{"lenght": 3}], "do you mean length?"),
        ([{"length": 3}, {"batch": 3}], "some tell dimension"),
    ],
)
def test_a_shape_that_does_not_fit_is_told(shapes: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(BadInputError) as raised:
        stated(MODEL, {}, [(shape, 1.0) for shape in shapes])
    assert message in str(raised.value)


def test_a_shape_outside_of_a_stated_range_is_told() -> None:
    found = stated(MODEL, {"length": "1..8"}, [({"length": 9}, 1.0)])
    with pytest.raises(
        BadInputError, match=r"dimension length: a shape has size 9, which is outside of 1\.\.8"
    ):
        found.space({"batch": "1", "past": "0", "image:0": "1", "image:2": "48"})


def test_sizes_of_a_call_are_those_of_its_inputs() -> None:
    assert sizes_of(MODEL, {"ids": (2, 5), "next": (4,)}) == {"batch": 2, "length": 5, "past": 3}


def test_a_flag_can_be_pasted() -> None:
    words = shlex.split(flag("past + 1", "1..8"))
    assert words == ["--dim", "past + 1=1..8"]

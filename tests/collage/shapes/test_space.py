"""Spaces of shapes: what texts and seen shapes say, and the shapes that stand for them."""

from __future__ import annotations

import json
import math
import pickle

import pytest

from collage.partitioner.errors import BadInputError
from collage.shapes.space import MOST_SHAPES, DimSizes, ShapeSpace, parse_dims


def _sizes(space: ShapeSpace, name: str) -> list[int]:
    return [shape.sizes[name] for shape in space.shapes]


def _total(space: ShapeSpace) -> float:
    return math.fsum(shape.weight for shape in space.shapes)


@pytest.mark.parametrize("said", [{}, {"batch": 1}, {"batch": "1"}, {"past": 0, "batch": "7..7"}])
def test_one_size_for_each_dimension_is_fixed(said: dict[str, int | str]) -> None:
    space = parse_dims(said)
    assert space.is_fixed and len(space.shapes) == 1 and space.shapes[0].weight == 1.0
    assert space.contains(space.shapes[0].sizes)


def test_shapes_that_are_left_out_give_their_weight_to_the_nearest() -> None:
    space = parse_dims({"length": "10:0.1,20:0.2,100:0.3,400:0.4"})
    fewer = space.fewer([space.shapes[0], space.shapes[3]])
    assert _sizes(fewer, "length") == [10, 400]
    assert [shape.weight for shape in fewer.shapes] == pytest.approx([0.3, 0.7])
    assert fewer.dims == space.dims
    assert space.fewer(space.shapes) == space


def test_sizes_of_a_list_are_the_shapes() -> None:
    space = parse_dims({"batch": 1, "length": "512, 16,64"})
    assert space.dims["length"] == DimSizes(16, 512, (16, 64, 512), (1 / 3, 1 / 3, 1 / 3))
    assert [dict(shape.sizes) for shape in space.shapes] == [
        {"batch": 1, "length": size} for size in (16, 64, 512)
    ]
    assert not space.is_fixed and _total(space) == pytest.approx(1)


def test_weights_are_normalized_and_multiply() -> None:
    space = parse_dims({"a": "1:3,2:1", "b": "8:1,4:1"})
    assert space.dims["a"].weights == (0.75, 0.25)
    weights = {(s.sizes["a"], s.sizes["b"]): s.weight for s in space.shapes}
    assert weights == pytest.approx({(1, 4): 0.375, (1, 8): 0.375, (2, 4): 0.125, (2, 8): 0.125})


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1..512", (1, 5, 23, 108, 512)),
        ("1..2", (1, 2)),
        ("0..64", (0, 1, 4, 16, 64)),
        ("0..1", (0, 1)),
        ("320..640/32", (320, 384, 448, 544, 640)),
    ],
)
def test_sizes_of_a_range_grow_geometrically(text: str, sizes: tuple[int, ...]) -> None:
    dim = parse_dims({"n": text}).dims["n"]
    assert dim.sizes == sizes and (dim.low, dim.high) == (sizes[0], sizes[-1])
    assert all(size in dim for size in sizes) and math.fsum(dim.weights) == pytest.approx(1)
    assert dim.text == text


def test_a_step_leaves_out_the_sizes_between() -> None:
    space = parse_dims({"width": "320..640/32"})
    assert space.contains({"width": 352}) and not space.contains({"width": 353})
    assert not space.contains({"width": 672}) and not space.contains({"height": 352})


def test_few_shapes_stand_for_a_product_with_its_ends() -> None:
    space = parse_dims({"batch": "1..8", "length": "1..512"})
    assert len(space.shapes) == MOST_SHAPES and _total(space) == pytest.approx(1)
    shapes = [dict(shape.sizes) for shape in space.shapes]
    assert {"batch": 1, "length": 1} in shapes and {"batch": 8, "length": 512} in shapes


def test_a_heavy_shape_stays() -> None:
    text = ",".join(f"{size}:{100 if size == 37 else 1}" for size in range(1, 60))
    assert 37 in _sizes(parse_dims({"length": text}), "length")


def test_many_dimensions_grow_together() -> None:
    space = parse_dims({f"d{number}": "1..100" for number in range(40)})
    assert len(space.shapes) == MOST_SHAPES
    assert all(len(set(shape.sizes.values())) == 1 for shape in space.shapes)


def test_shapes_seen_are_clustered_with_their_weights() -> None:
    seen = [{"x": [1, near]} for center in (8, 64, 500) for near in range(center - 2, center + 3)]
    space = parse_dims({}, seen * 3 + [{"x": [1, 64]}] * 45, most=3)
    assert space.dims["x:0"].is_fixed and (space.dims["x:1"].low, space.dims["x:1"].high) == (6, 502)
    found = {shape.sizes["x:1"]: shape.weight for shape in space.shapes}
    assert found == pytest.approx({8: 1 / 6, 64: 2 / 3, 500: 1 / 6})


def test_thousands_of_different_shapes_are_clustered() -> None:
    space = parse_dims({}, [{"x": [size, size % 7 + 1]} for size in range(1, 5000)])
    assert len(space.shapes) == MOST_SHAPES and _total(space) == pytest.approx(1)
    assert space.dims["x:0"].high == 4999


def test_a_stated_range_holds_the_shapes_that_were_seen() -> None:
    space = parse_dims({"x:0": "1..512", "batch": 2}, [{"x": [16]}, {"x": [16]}, {"x": [64]}])
    assert space.dims["x:0"].text == "1..512"
    assert {s.sizes["x:0"]: s.weight for s in space.shapes} == pytest.approx({16: 2 / 3, 64: 1 / 3})
    assert all(shape.sizes["batch"] == 2 for shape in space.shapes)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("512..1", "dimension n: the range 512..1 ends before it begins; say 1..512"),
        ("1..", "dimension n: '' is no size"),
        ("1,2,1", "size 1 is given twice"),
        ("1:0.5,2", "2 has none, say 2:0.5"),
        ("1:512", "1:512 is one size with a weight; say 1 for that size alone, or 1..512 for a range"),
        ("16:0.5", "16:0.5 is one size with a weight; say 16 for that size alone"),
        ("1:0", "the weight '0' of size 1 must be a number above 0"),
        ("1:nan", "the weight 'nan'"),
        ("1:inf,2:1", "the weight 'inf'"),
        ("", "dimension n: '' is no size; give a size (16)"),
        ("-1", "'-1' is no size"),
        ("²", "'²' is no size"),
        ("1,2..8", "mixes a range with sizes"),
        ("320..650/32", "does not end on a step; say 320..640/32 or 320..672/32"),
        ("1..9/0", "the steps of 1..9/0 must be at least 1"),
        ("9999999999", "size 9999999999 must be from 0 to 2147483647"),
        (-1, "size -1 must be from 0"),
        (True, "True is no size"),
        (1.5, "1.5 is no size"),
        (",".join(map(str, range(2000))), "2000 sizes are more than 1000; give a range"),
        ("1," * 9999, "characters is too long"),
    ],
)
def test_what_is_no_dimension_is_told(said: int | str, message: str) -> None:
    with pytest.raises(BadInputError) as raised:
        parse_dims({"n": said})
    assert message in str(raised.value) and "dimension n" in str(raised.value)


@pytest.mark.parametrize(
    ("said", "seen", "message"),
    [
        ({"x:0": "1..8"}, [{"x": [9]}], "dimension x:0: a shape has size 9, which is outside of 1..8"),
        ({"x:0": 2}, [{"x": [3]}], "dimension x:0: a shape has size 3, which is outside of 2;"),
        ({}, [{"x": [3]}, {"x": [3, 4]}], "each shape must have the same inputs and axes"),
        ({}, [{"x": [-3]}], "dimension x:0: the size -3 of a shape is no whole number"),
    ],
)
def test_shapes_that_contradict_are_told(
    said: dict[str, int | str], seen: list[dict[str, list[int]]], message: str
) -> None:
    with pytest.raises(BadInputError) as raised:
        parse_dims(said, seen)
    assert message in str(raised.value)


@pytest.mark.parametrize("said", [{}, {"a": "1..512", "b": "3:1,9:2"}, {"w": "320..640/32"}])
def test_a_space_survives_json_and_pickle(said: dict[str, int | str]) -> None:
    space = parse_dims(said)
    assert ShapeSpace.from_json(json.loads(json.dumps(space.as_json()))) == space
    assert pickle.loads(pickle.dumps(space)) == space


@pytest.mark.parametrize(
    "change",
    [
        {"dims": None},
        {"shapes": [{"sizes": {"a": 3}, "weight": 1.0}]},
        {"shapes": [{"sizes": {"a": 1}, "weight": 0.5}]},
        {"dims": {"a": {"low": 2, "high": 1, "sizes": [1], "weights": [1.0]}}},
        {"dims": {"a": {"low": 1, "high": 2, "sizes": [], "weights": []}}},
        {"dims": {"a": {"low": 1, "high": 2, "sizes": [1, 2], "weights": [1.0]}}},
        {"dims": {"a": {"low": 1, "high": 2, "sizes": [1, 2], "weights": [0.9, 0.9]}}},
        {"dims": {"a": {"low": 1, "high": 2, "sizes": [1, 2], "weights": ["x", 0.9]}}},
    ],
)
def test_a_damaged_space_is_refused(change: dict[str, object]) -> None:
    data = {**parse_dims({"a": "1,2"}).as_json(), **change}
    with pytest.raises(BadInputError):
        ShapeSpace.from_json(data)

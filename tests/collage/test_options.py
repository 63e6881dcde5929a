"""The options of a tuning: the default patience, and what is said of dimensions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from collage import seen_shape
from collage.options import OptionsError, TuneOptions
from collage.seen_shape import SeenShape
from collage.shapes.seen import read_shapes

MIB = 1 << 20


def test_large_weights_get_more_time() -> None:
    options = TuneOptions()
    seconds = [options.limit_s(size) for size in (0, 100 * MIB, 232 * MIB)]
    assert seconds[0] == seconds[1] and seconds[2] == pytest.approx(seconds[1] + 66)


def test_a_stated_limit_is_the_only_one() -> None:
    options = TuneOptions(time_limit_s=7.0)
    assert options.limit_s(500 * MIB) == 7.0 and options.most_regions is None
    assert TuneOptions().most_regions is not None


@pytest.mark.parametrize(
    ("options", "dims"),
    [
        ({}, {}),
        ({"dims": {"batch": 1, "x:1": "7"}}, {"batch": 1, "x:1": 7}),
        ({"dims": {"batch": 1, "length": "1..512"}}, None),
        ({"dims": {"batch": 1}, "shapes": [{"x": [1, 2]}]}, None),
    ],
)
def test_dims_are_fixed_where_each_has_one_size(
    options: dict[str, object], dims: dict[str, int] | None
) -> None:
    assert TuneOptions.from_json(options).fixed_dims == dims


def _requests(count: int, different: int) -> list[dict[str, object]]:
    return [{"ids": [1, 1 + number * number % different]} for number in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "requests",
    [
        _requests(600, 1),
        _requests(600, 61),
        _requests(5000, 4999),
        [*_requests(600, 61), {"sizes": {"ids": [1, 3]}, "weight": 2.5}],
    ],
    ids=["one", "repeated", "many", "weighted"],
)
def test_a_list_of_requests_is_counted_as_a_file_is(
    requests: list[dict[str, object]], tmp_path: Path
) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(map(json.dumps, requests)), encoding="utf-8")
    listed = TuneOptions.from_json({"shapes": requests})
    assert listed.shapes == TuneOptions.from_json({"shapes": read_shapes(path)}).shapes
    assert TuneOptions.from_json(listed.as_json()) == listed
    assert sum(shape.weight for shape in listed.shapes) == pytest.approx(len(requests), abs=1.6)


def test_shapes_that_are_given_as_such_are_counted() -> None:
    shape = SeenShape(sizes={"ids": (1, 16)}, weight=2.0, repeated=0.5)
    assert TuneOptions(shapes=(shape, shape)).shapes == (
        SeenShape(sizes={"ids": (1, 16)}, weight=4.0, repeated=0.5),
    )


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([*_requests(600, 61), {"ids": [-1]}], "entry 601: ids: -1 is no size"),
        (_requests(1201, 61), "1201 requests are more than 1200; count equal ones"),
        ([{str(number % 2): [number]} for number in range(1200)], "the shapes name different inputs"),
        ({"ids": [1]}, "valid"),
    ],
)
def test_requests_that_cannot_be_counted_are_told(
    requests: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen_shape, "MOST_REQUESTS", 1200)
    with pytest.raises(OptionsError) as raised:
        TuneOptions.from_json({"shapes": requests})
    ((where, said),) = raised.value.faults
    assert where == "options.shapes" and message in said


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"dims": {"length": "9..1"}}, "options.dims.length", "the range 9..1 ends before it begins"),
        ({"dims": {"length": 1.5}}, "options.dims.length", "1.5 is no size"),
        ({"dims": {"length": True}}, "options.dims.length", "True is no size"),
        ({"dims": {"length": -1}}, "options.dims.length", "size -1 must be from 0"),
        ({"shapes": [{"x": [1]}, {"x": [-1]}]}, "options.shapes.1", "x: -1 is no size"),
        ({"shapes": [{}]}, "options.shapes.0", "a shape without sizes says nothing"),
    ],
)
def test_a_bad_dimension_is_told_with_its_field(
    options: dict[str, object], field: str, message: str
) -> None:
    with pytest.raises(OptionsError) as raised:
        TuneOptions.from_json(options)
    ((where, said),) = raised.value.faults
    assert where == field and message in said

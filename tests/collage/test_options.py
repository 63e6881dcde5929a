"""The options of a tuning: the default patience, and what is said of dimensions."""

from __future__ import annotations

import pytest

from collage.options import OptionsError, TuneOptions

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

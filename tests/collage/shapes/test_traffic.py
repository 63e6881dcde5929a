"""Which shapes come one after another, and how many of them are new."""

from __future__ import annotations

import math

import pytest

from collage.shapes.space import parse_dims
from collage.shapes.traffic import MOST_KEPT, Recency, Traffic


def _of(text: str, **more: str) -> Traffic:
    return Traffic(parse_dims({"n": text, **more}).dims)


def _listed(count: int) -> str:
    return ",".join(map(str, range(1, count + 1)))


@pytest.mark.parametrize("text", ["16,64,512", "1..8", _listed(MOST_KEPT)])
def test_few_shapes_repeat(text: str) -> None:
    assert _of(text).new_share == 0.0


@pytest.mark.parametrize("count", [MOST_KEPT + 1, 64, 200])
def test_of_many_alike_so_many_are_new_as_are_not_kept(count: int) -> None:
    assert _of(_listed(count)).new_share == pytest.approx(1 - MOST_KEPT / count, abs=0.03)


def test_sizes_of_two_dimensions_multiply() -> None:
    assert _of(_listed(6)).new_share == 0.0
    assert _of(_listed(12), m=_listed(12)).new_share == pytest.approx(1 - MOST_KEPT / 144, abs=0.03)


def test_a_heavy_size_repeats() -> None:
    text = ",".join(f"{size}:{900 if size == 37 else 1}" for size in range(1, 101))
    assert 0.02 < _of(text).new_share < 0.1


def test_a_list_that_looks_like_a_range_is_none() -> None:
    sizes = parse_dims({"n": "1..512"}).dims["n"].sizes
    assert _of(",".join(map(str, sizes))).new_share == 0.0 < _of("1..512").new_share


def test_a_log_tells_what_repeats() -> None:
    seen = [({"n": size}, 1.0) for size in range(1, 201)]
    dims = parse_dims({"n": "1..200", "b": "1,2"}).dims
    assert Traffic({"n": dims["n"]}, seen, 0.75).new_share == 0.25
    # Of another dimension it says nothing.
    assert Traffic(dims, seen, 0.75).new_share > 0.8


def test_shapes_seen_are_drawn_together() -> None:
    seen = [({"h": size, "w": 2 * size, "gone": 1}, float(size)) for size in (10, 20, 30)]
    dims = parse_dims({"h": "10..30", "w": "20..60", "b": "1..2"}).dims
    drawn = Traffic(dims, seen).draw(600)
    assert {tuple(sizes) for sizes in drawn} == {("h", "w", "b")}
    assert all(sizes["w"] == 2 * sizes["h"] for sizes in drawn)
    count = sum(sizes["h"] == 30 for sizes in drawn)
    assert math.isclose(count / len(drawn), 0.5, abs_tol=0.08)


def test_sizes_that_are_drawn_are_those_that_are_served() -> None:
    space = parse_dims({"width": "320..640/32", "length": "0..512", "batch": "1,4"})
    traffic = Traffic(space.dims)
    drawn = traffic.draw(41)
    assert drawn == traffic.draw(41) and len({tuple(sizes.values()) for sizes in drawn}) > 20
    assert all(sizes[name] in dim for sizes in drawn for name, dim in space.dims.items())
    assert {sizes["batch"] for sizes in drawn} == {1, 4}


def test_the_shape_that_came_longest_ago_goes_first() -> None:
    recency = Recency()
    assert not any(recency.add(size) for size in range(MOST_KEPT))
    assert recency.add(0) and not recency.is_full
    assert not recency.add("new") and recency.is_full
    assert recency.add(0) and not recency.add(1)

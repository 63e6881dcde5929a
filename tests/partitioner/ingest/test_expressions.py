"""Sums in the names of dimensions."""

from __future__ import annotations

import pytest

from collage.partitioner.ingest.expressions import Linear, bound, parse_sum, size_of


@pytest.mark.parametrize(
    ("text", "terms", "constant"),
    [
        ("past + 1", (("past", 1),), 1),
        ("past_length+sequence", (("past_length", 1), ("sequence", 1)), 0),
        ("2*frames - 1", (("frames", 2),), -1),
        ("1 + s0*3", (("s0", 3),), 1),
        ("2*(a.dim_1 + b) - b", (("a.dim_1", 2), ("b", 1)), 0),
        ("(past) + 1 ", (("past", 1),), 1),
    ],
)
def test_a_sum_is_read(text: str, terms: tuple[tuple[str, int], ...], constant: int) -> None:
    found = parse_sum(text)
    assert found == Linear(terms, constant)
    assert found.value(dict.fromkeys(found.names, 4)) == constant + 4 * sum(f for _, f in terms)


@pytest.mark.parametrize(
    "text",
    [
        "batch",
        "",
        "3",
        "a*b",
        "a + ",
        "a b",
        "(a + 1",
        "a + 1)",
        "floor(a/2)",
        "a//2",
        "a - a",
        "é?",
        "(" * 150 + "a",
        "a + " * 100 + "a",
        "9" * 30,
    ],
)
def test_what_is_no_sum_is_none(text: str) -> None:
    assert parse_sum(text) is None


@pytest.mark.parametrize(
    ("text", "value", "size"),
    [("past + 1", 17, 16), ("past + 1", 0, None), ("2*a", 8, 4), ("2*a", 7, None), ("3 - 1*a", 1, 2)],
)
def test_a_sum_of_one_dimension_is_solved(text: str, value: int, size: int | None) -> None:
    found = parse_sum(text)
    assert found is not None and found.solve(value) == size


@pytest.mark.parametrize(
    ("name", "sizes", "found"),
    [
        ("past", {"past": 3}, 3),
        ("past", {"other": 3}, "past"),
        ("past + 1", {"past": 3}, 4),
        ("past + 1", {"past + 1": 9, "past": 3}, 9),
        ("past + length", {"length": 2}, "past + 2"),
        ("past + length - 2", {"length": 2}, "past"),
        ("2*a - 1*b + 4", {"c": 1}, "2*a - 1*b + 4"),
        ("2*a - 1*b + 4", {"b": 9}, "2*a - 5"),
    ],
)
def test_sizes_are_put_into_a_sum(name: str, sizes: dict[str, int], found: int | str) -> None:
    assert bound(name, sizes) == found
    assert size_of(name, sizes) == (found if isinstance(found, int) else None)


@pytest.mark.parametrize("text", ["past + 1", "2*a - 1*b + 4", "-1*a + b", "a - 3"])
def test_a_sum_is_written_as_it_is_read(text: str) -> None:
    found = parse_sum(text)
    assert found is not None and found.text == text

"""Sums in the names of dimensions."""

from __future__ import annotations

import pytest

from collage.partitioner.ingest.expressions import Linear, parse_sum


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
        "-a",
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

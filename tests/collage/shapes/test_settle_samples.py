"""Sizes of given samples: what they say of free dimensions, and how they meet what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage.partitioner.errors import BadInputError
from collage.shapes.settle import settle
from tests.collage.shapes.models import text_model


def _ids(*lengths: int) -> list[dict[str, tuple[int, ...]]]:
    return [{"ids": (1, length)} for length in lengths]


def test_sizes_of_samples_stand_for_a_range_beside_its_ends(tmp_path: Path) -> None:
    dims = {"batch": 1, "length": "2..256"}
    settled = settle(text_model(tmp_path), dims, samples=_ids(40, 41, 200))
    lengths = [shape.sizes["length"] for shape in settled.space.shapes]
    assert {2, 40, 200, 256} <= set(lengths) and len(lengths) <= 5


def test_sizes_that_are_listed_stay_those_that_matter(tmp_path: Path) -> None:
    settled = settle(text_model(tmp_path), {"batch": 1, "length": "2,64,256"}, samples=_ids(40))
    assert [shape.sizes["length"] for shape in settled.space.shapes] == [2, 64, 256]


def test_samples_say_the_sizes_of_which_nothing_is_said(tmp_path: Path) -> None:
    settled = settle(text_model(tmp_path), {}, samples=_ids(5, 30, 30))
    assert {name: dim.text for name, dim in settled.space.dims.items()} == {
        "batch": "1",
        "length": "5..30",
    }
    assert [(s.sizes["length"], round(s.weight, 2)) for s in settled.space.shapes] == [
        (5, 0.33),
        (30, 0.67),
    ]


def test_samples_that_contradict_the_model_are_told(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="inputs: input ids has rank 2"):
        settle(text_model(tmp_path), {"length": "2..9"}, samples=[{"ids": (1, 2, 3, 4)}])

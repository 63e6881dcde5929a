"""The values of a tuning run form a chain."""

from __future__ import annotations

import itertools
from dataclasses import fields

import pytest

from collage.tuning import stages

CHAIN = (
    stages.Ingested,
    stages.Proposed,
    stages.Prepared,
    stages.Allowed,
    stages.Baselines,
    stages.Budgeted,
    stages.Timed,
    stages.Searched,
    stages.Refined,
)


@pytest.mark.parametrize("value", CHAIN, ids=lambda value: value.__name__)
def test_value_is_frozen(value: type) -> None:
    assert value.__dataclass_params__.frozen  # type: ignore[attr-defined]


@pytest.mark.parametrize(("before", "after"), list(itertools.pairwise(CHAIN)))
def test_value_holds_all_of_the_value_before(before: type, after: type) -> None:
    known = {field.name for field in fields(before)}
    assert known < {field.name for field in fields(after)}

"""Each strategy that a caller may choose has a function."""

from __future__ import annotations

from typing import get_args

from collage.options import Strategy
from collage.tuning.solve import STRATEGIES


def test_every_strategy_has_a_function() -> None:
    assert set(STRATEGIES) == set(get_args(Strategy))

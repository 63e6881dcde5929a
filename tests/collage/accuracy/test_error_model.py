"""The fastest mix within a goal, and what is learned from mixes that were run."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from collage.accuracy.error_model import (
    Block,
    ReducedNodes,
    fastest_mix,
    fit_shares,
    mix_of,
    targets_of,
    time_us,
)


def _case(seed: int) -> tuple[list[Block], np.ndarray, float]:
    chance = random.Random(seed)
    blocks = [
        Block(1 << i, (10.0, chance.uniform(3, 12), chance.uniform(1, 9)), chance.uniform(0, 4))
        for i in range(6)
    ]
    shares = np.array([[0.0, chance.uniform(0, 1), chance.uniform(0, 2)] for _ in blocks])
    return blocks, shares, chance.uniform(0.3, 4)


@pytest.mark.parametrize("seed", range(20))
def test_no_mix_within_the_limit_is_faster(seed: int) -> None:
    blocks, shares, limit = _case(seed)

    def fastest(within: float) -> float:
        return min(
            time_us(blocks, mix)
            for mix in itertools.product(range(3), repeat=len(blocks))
            if sum(shares[i, t] for i, t in enumerate(mix)) <= within
        )

    found = fastest_mix(blocks, shares, limit)
    assert sum(shares[i, t] for i, t in enumerate(found)) <= limit
    # Shares are rounded up to steps of the limit, by less than one step for each block.
    assert fastest(limit) - 1e-9 <= time_us(blocks, found) <= fastest(limit * 0.99) + 1e-9


def test_dear_borders_ask_for_fewer() -> None:
    blocks = [Block(1 << i, (10.0, 5.0), 1.0) for i in range(9)]
    shares = np.array([[0.0, 3.0 if i in (2, 6) else 1.0] for i in range(9)])

    def changes(factor: float) -> int:
        found = fastest_mix(blocks, shares, 7.0, factor)
        return sum(a != b for a, b in itertools.pairwise(found))

    assert changes(1.0) == 4
    assert changes(8.0) < changes(1.0)


def test_a_target_that_refuses_a_block_is_not_used_for_it() -> None:
    blocks = [Block(1, (10.0, math.inf), 0.0), Block(2, (10.0, 1.0), 0.0)]
    assert fastest_mix(blocks, np.array([[0.0, math.inf], [0.0, 0.1]]), 1.0) == (0, 1)


def test_mixes_and_choices_are_the_same_thing() -> None:
    blocks = [Block(1 << i, (1.0, 1.0, 1.0), 0.0) for i in range(5)]
    for chosen in itertools.product(range(3), repeat=5):
        assert targets_of(blocks, mix_of(blocks, chosen, 3)) == chosen


def test_shares_are_learned_from_what_was_run() -> None:
    """Alone each block errs 1e-3; two of them together err ten times as much as by quadrature."""
    blocks = [Block(1 << i, (2.0, 1.0), 0.0) for i in range(4)]
    alone = np.array([[0.0, 1e-6]] * 4)
    tried: dict[ReducedNodes, float] = {(1 << i,): 1e-3 for i in range(4)}
    tried |= {(0b0011,): 1.4e-2, (0b1100,): 1.4e-3}
    shares = fit_shares(blocks, alone, tried, 5e-3)
    assert shares[:2, 1].sum() > 3 * shares[2:, 1].sum()
    assert math.sqrt(shares[2:, 1].sum()) == pytest.approx(1.4e-3, rel=0.1)
    assert not shares[:, 0].any()

"""How errors of blocks add up, and the fastest mix within a limit.

Terms: a *block* is a run of nodes of the model's line. A *mix* gives each block to one of several
targets; number 0 is the *exact* one, the others are *reduced* (bf16, int8, …). Its error is that of the
model's outputs, found by running it.

The model of addition: every block has a *share* for each reduced target. A mix's squared error is the
sum of the shares of its reduced blocks, as independent errors add. A share starts as the squared error
of the block reduced alone, and is fitted to the mixes that were run (docs/results/error-addition.md).

Invariant: a prediction only says which mix to run next. It is never an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collage.accuracy.mix_partitions import MixablePairs

ReducedNodes = tuple[int, ...]
"""Nodes of a mix on each reduced target (bitsets)."""

_BINS = 600
_FITTING_STEPS = 60
# Errors of rounding alone teach nothing.
_SMALLEST_SQUARE = 1e-14

MIXED_SHARE = 0.25
"""Of a border's price, for a change inside a mixed partition; a guess: it converts, but calls and copies nothing."""


@dataclass(frozen=True)
class Block:
    """A run of nodes."""

    nodes: int  # bitset
    times_us: tuple[float, ...]  # its time on each target; infinite where the target refuses it
    border_us: float  # cost of a border of partitions before it
    inside: MixablePairs = frozenset()  # pairs of targets that go into one partition

    def change_us(self, before: int, after: int) -> float:
        """Cost of a change from one target to another before this block."""
        if before == after:
            return 0.0
        return self.border_us * (MIXED_SHARE if (before, after) in self.inside else 1.0)


def targets_of(blocks: Sequence[Block], mix: ReducedNodes) -> tuple[int, ...]:
    """The target of each block in a mix."""
    return tuple(
        next((t for t, nodes in enumerate(mix, 1) if nodes & block.nodes), 0) for block in blocks
    )


def mix_of(blocks: Sequence[Block], chosen: Sequence[int], targets: int) -> ReducedNodes:
    """The mix that gives each block its target.

    Args:
        chosen: the target of each.
        targets: how many there are, the exact one included.
    """
    nodes = [0] * targets
    for block, target in zip(blocks, chosen, strict=True):
        nodes[target] |= block.nodes
    return tuple(nodes[1:])


def time_us(blocks: Sequence[Block], chosen: Sequence[int], border_factor: float = 1.0) -> float:
    """Estimated time of a mix."""
    total = 0.0
    for i, (block, target) in enumerate(zip(blocks, chosen, strict=True)):
        total += block.times_us[target]
        if i:
            total += block.change_us(chosen[i - 1], target) * border_factor
    return total


def fit_shares(
    blocks: Sequence[Block], alone: np.ndarray, tried: Mapping[ReducedNodes, float], goal: float
) -> np.ndarray:
    """Shares of squared error that explain the mixes which were run, best near the goal.

    Args:
        alone: squared error of each block alone on each target, shape (blocks, targets); infinite where
            it cannot be used, 0 for the exact target.
        tried: error of each mix.
        goal: the error near which predictions matter.

    Returns:
        Shares of the same shape.

    Source: multiplicative updates for non-negative least squares, Lee and Seung, NIPS 2000.
    """
    rows, squares = [], []
    for mix, error in tried.items():
        chosen = targets_of(blocks, mix)
        if any(chosen) and math.isfinite(error) and mix == mix_of(blocks, chosen, len(mix) + 1):
            rows.append(_one_hot(chosen, alone.shape[1]))
            squares.append(error**2)
    shares = np.where(np.isfinite(alone), np.maximum(alone, _SMALLEST_SQUARE), 0.0).reshape(-1)
    if rows:
        features, wanted = np.array(rows), np.array(squares)
        weights = 1.0 / (wanted + goal**2) ** 2
        pull = features.T @ (weights * wanted)
        for _ in range(_FITTING_STEPS):
            push = features.T @ (weights * (features @ shares))
            shares = shares * np.where(push > 0, pull / np.maximum(push, 1e-300), 1.0)
    fitted = shares.reshape(alone.shape)
    fitted[:, 0] = 0.0
    return np.where(np.isfinite(alone), fitted, np.inf)


def _one_hot(chosen: Sequence[int], targets: int) -> np.ndarray:
    row = np.zeros((len(chosen), targets))
    row[np.arange(len(chosen)), list(chosen)] = 1.0
    row[:, 0] = 0.0
    return row.reshape(-1)


def fastest_mix(
    blocks: Sequence[Block], shares: np.ndarray, limit: float, border_factor: float = 1.0
) -> tuple[int, ...]:
    """The target of each block in the fastest mix whose shares add up to at most a limit.

    A dynamic program over blocks, targets and the squared error spent so far in equal steps; shares are
    rounded up, so the sum keeps the limit.

    Args:
        blocks: in order; the exact target takes every one.
        limit: on their sum.
        border_factor: how many times dearer borders are; more than 1 asks for fewer.
    """
    targets = shares.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.ceil(shares / limit * _BINS)
    best = np.full((targets, _BINS + 1), np.inf)
    best[:, 0] = 0.0
    came_from = np.zeros((len(blocks), targets, _BINS + 1), dtype=np.int16)
    for i, block in enumerate(blocks):
        factor = border_factor if i else 0.0
        change = [[block.change_us(t, u) * factor for t in range(targets)] for u in range(targets)]
        # arrive[t]: the cheapest way to this block on target t.
        stay = best[None, :, :] + np.array(change)[:, :, None]
        came_from[i] = stay.argmin(axis=1)
        arrive = stay.min(axis=1)
        best = np.full((targets, _BINS + 1), np.inf)
        for target in range(targets):
            price, step = block.times_us[target], steps[i, target]
            if math.isfinite(price) and step <= _BINS:
                width = int(step)
                best[target, width:] = arrive[target, : _BINS + 1 - width] + price
    target, spent = (int(number) for number in np.unravel_index(int(best.argmin()), best.shape))
    chosen = [0] * len(blocks)
    for i in reversed(range(len(blocks))):
        chosen[i] = target
        spent -= int(steps[i, target])
        target = int(came_from[i, target, spent])
    return tuple(chosen)

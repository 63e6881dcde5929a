"""Mixes of few pieces, found by running them as the plans that they become.

Terms as in `collage.accuracy.error_model`. A *piece* is a run of neighboring blocks of one target,
compiled as one. A mix in pieces errs otherwise than in blocks, since a runtime rounds at other places
inside a piece. It is faster, since each border converts numbers and layout. So what keeps a limit in
pieces is sought in pieces: first the mixes that the shares promise; then changes of the fastest one
found; at last changes of any mix that kept the limit, or nearly.

Invariant: a returned mix kept the limit on every sample, the held-out ones included.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from collage.accuracy.error_model import (
    Block,
    ReducedNodes,
    fastest_mix,
    fit_shares,
    mix_of,
    targets_of,
    time_us,
)
from collage.accuracy.mix_partitions import MixablePairs
from collage.accuracy.mix_runner import MixResult, MixRunner

# A border costs more than a call and a copy; how much more depends on unknown layouts.
BORDER_FACTOR = 2.0
_LEARNING_STEPS = 16
# Squared errors that are asked for, over the goal's: while there is time, more than promises to keep
# it.
_AMBITIONS = (1.0, 1.5, 2.5, 4.0)
_TIGHTER = 0.8
_SHIFTS = (1, 2)
# Mixes that keep the goal in blocks and run as plans first.
_FIRST = 3
# A mix whose squared error is estimated this many times the goal's does not run.
_HOPELESS = 2.0
# A small change of a mix that errs this many times the goal may keep it.
_NEARLY = 1.3


class MergedMixes:
    """Finds mixes of few pieces.

    Args:
        shares: of squared error, from mixes in blocks; shape (blocks, targets).
        deadline_s: `time.monotonic()` after which nothing runs.
        in_blocks: run mixes in blocks, which compiles nothing, where most mixes are one partition each.
    """

    def __init__(
        self,
        runs: MixRunner,
        blocks: Sequence[Block],
        shares: np.ndarray,
        deadline_s: float,
        in_blocks: bool = False,
    ) -> None:
        self._runs = runs
        self._blocks = blocks
        self._first_shares = shares
        self._deadline_s = deadline_s
        self._learned = (
            (0.0, -1),
            shares,
        )  # goal and number of mixes that they were fitted to, and the shares
        self._errors = runs.errors if in_blocks else runs.joined_errors
        self._error = runs.error if in_blocks else runs.joined_error
        self._pace = self._reckoned_us if in_blocks else runs.joined_us.__getitem__

    def seek(self, goal: float, more: Sequence[MixResult]) -> list[MixResult]:
        """Mixes that keep a goal, the fastest first.

        Args:
            goal: error to stay below.
            more: mixes that keep it in blocks; they run where nothing else is found.
        """
        if self._runs.inside:  # such mixes err in blocks nearly as in one piece
            for number, mix in enumerate(more[:_FIRST]):
                if number == 0 or not self._late:
                    self._error(mix.reduced)
            self._climb(goal)
        for ambition in _AMBITIONS:
            self._learn(goal, ambition)
            for mix in more:
                if self._kept(goal) or self._late:
                    break
                self._error(mix.reduced)
            self._climb(goal)
        self._look_around(goal)
        return [MixResult(mix, self._errors[mix]) for mix in self._kept(goal)]

    @property
    def _late(self) -> bool:
        return time.monotonic() > self._deadline_s

    def _kept(self, goal: float) -> list[ReducedNodes]:
        """Mixes that kept a goal, the fastest first."""
        found = self._errors.items()
        kept = [m for m, error in found if error <= goal and any(m) and self._is_of_blocks(m)]
        return sorted(kept, key=self._pace)

    def _is_of_blocks(self, mix: ReducedNodes) -> bool:
        return mix == self._mix(targets_of(self._blocks, mix))

    def _mix(self, chosen: Sequence[int]) -> ReducedNodes:
        return mix_of(self._blocks, chosen, self._first_shares.shape[1])

    def _reckoned_us(self, mix: ReducedNodes) -> float:
        return time_us(self._blocks, targets_of(self._blocks, mix), BORDER_FACTOR)

    def _shares(self, goal: float) -> np.ndarray:
        if self._learned[0] != (goal, len(self._errors)):
            fitted = fit_shares(self._blocks, self._first_shares, self._errors, goal)
            self._learned = (goal, len(self._errors)), fitted
        return self._learned[1]

    def _learn(self, goal: float, scale: float) -> None:
        """Run the mix that is promised to be the fastest within a goal, and learn from it, until one keeps it.

        Args:
            goal: error to stay below.
            scale: of its square, to begin with.
        """
        for _ in range(_LEARNING_STEPS):
            if self._late:
                return
            limit = goal**2 * scale
            chosen = fastest_mix(self._blocks, self._shares(goal), limit, BORDER_FACTOR)
            mix = self._mix(chosen)
            if not any(chosen):
                return
            if mix in self._errors:
                scale *= _TIGHTER  # the shares do not explain it: ask for less
            if self._error(mix) <= goal:
                return

    def _climb(self, goal: float) -> None:
        """Change the fastest mix in small steps while it becomes faster and keeps the goal."""
        kept = self._kept(goal)
        best = kept[0] if kept else None
        while best is not None:
            best = self._faster(best, goal)

    def _look_around(self, goal: float) -> None:
        """Change any mix that keeps the goal, or nearly, where a change promises to be faster than the fastest."""
        errors, tried = self._errors, -1
        while (kept := self._kept(goal)) and tried < len(errors):
            tried = len(errors)
            seeds = [
                m for m, error in errors.items() if error <= _NEARLY * goal and self._is_of_blocks(m)
            ]
            near = {self._mix(o) for mix in seeds for o in self._near(targets_of(self._blocks, mix))}
            self._first_kept(kept[0], near, goal)

    def _faster(self, mix: ReducedNodes, goal: float) -> ReducedNodes | None:
        """A faster mix that keeps a goal, one or two changes away; None where there is none, or no time."""
        chosen = targets_of(self._blocks, mix)
        near = {self._mix(other): other for other in self._near(chosen)}
        far = {self._mix(other): other for first in near.values() for other in self._near(first)}
        return self._first_kept(mix, near, goal) or self._first_kept(mix, far, goal)

    def _near(self, chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        yield from neighbors(chosen)
        yield from flips(chosen, self._runs.inside)

    def _first_kept(
        self, mix: ReducedNodes, others: Collection[ReducedNodes], goal: float
    ) -> ReducedNodes | None:
        """The first of other mixes, the fastest first, that keeps a goal and is estimated faster than one."""
        for other in sorted(others, key=self._reckoned_us):
            if self._late or self._reckoned_us(other) >= self._reckoned_us(mix):
                return None
            if other in self._errors:
                continue
            shares = self._shares(goal)  # fitted again: the last runs taught something
            promised = sum(shares[i, t] for i, t in enumerate(targets_of(self._blocks, other)))
            if promised <= _HOPELESS * goal**2 and self._error(other) <= goal:
                return other
        return None


def neighbors(chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The mixes with one border shifted, or with one piece taken over by its neighbor."""
    borders = [i for i in range(1, len(chosen)) if chosen[i] != chosen[i - 1]]
    edges = [0, *borders, len(chosen)]
    for number, border in enumerate(borders, 1):
        low, high = edges[number - 1], edges[number + 1]
        for shift in (*_SHIFTS, len(chosen)):
            start, end = max(low, border - shift), min(high, border + shift)
            yield (*chosen[:start], *[chosen[border]] * (border - start), *chosen[border:])
            yield (*chosen[:border], *[chosen[border - 1]] * (end - border), *chosen[end:])


def flips(chosen: tuple[int, ...], inside: MixablePairs) -> Iterator[tuple[int, ...]]:
    """The mixes in which one block has another target of the same partition."""
    for i, target in enumerate(chosen):
        for other in sorted(other for one, other in inside if one == target):
            yield (*chosen[:i], other, *chosen[i + 1 :])

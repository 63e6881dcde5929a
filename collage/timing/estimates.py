"""What all comparisons together say of how fast each plan is.

Terms: a *cell* is what one comparison says of one plan: its log latency beside the other plans of that comparison. An
*estimate* is a plan's log latency relative to the baseline, by all cells.

In a comparison, each round has an effect that all plans share, and each plan a level: a median polish separates them.
Over comparisons, each comparison has an effect (the machine's pace of that minute), each plan an estimate, and each
cell an error, since builds differ. The estimates minimize the sum of Huber losses of the errors. That is a convex
problem, so the order of plans and comparisons does not matter, and no single comparison decides.

Source: median polish as in Tukey, "Exploratory Data Analysis" (1977); the loss as in Huber, "Robust Estimation of a
Location Parameter" (1964).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from collage.backends.measurement.ratio import Ratio
from collage.timing.request import PlanTiming
from collage.timing.timed_plan import TimedPlan, speedup

# Builds of the same plan differ by so much (docs/results/comparing-plans.md); errors beyond it weigh less and less.
BUILD_SPREAD = 0.02
_HUBER = 1.345 * BUILD_SPREAD
# As much as so many cells say that a plan's own spread is that of all builds.
_PRIOR_CELLS = 4
# Cells that do not judge only connect plans that no other comparison connects.
_NOT_JUDGING = 1e-3
# A comparison of so many rounds says half as much as one of very many.
_HALF_ROUNDS = 2
# The standard error of a median, over the median of absolute errors and the square root of their number.
_OF_MEDIAN = 1.2533 * 1.4826
_POLISHES, _STEPS, _CLOSE = 20, 50, 1e-9


class Estimates:
    """Estimates of the plans that were timed.

    Args:
        entries: plans, the baseline first; those that were not timed have no estimate.
    """

    def __init__(self, entries: Sequence[TimedPlan]) -> None:
        timed = [entry for entry in entries if entry.samples_us]
        self._at = {id(entry): i for i, entry in enumerate(timed)}
        cells = _cells(timed)
        self._logs, errors = _fit(cells, len(timed))
        self._spreads, self._cells = _spreads(cells, errors, len(timed))
        self._common = _common_spread(cells, errors, len(timed)) if cells else BUILD_SPREAD

    def knows(self, entry: TimedPlan) -> bool:
        """True where a plan has an estimate."""
        return id(entry) in self._at

    def ratio(self, entry: TimedPlan) -> float:
        """A plan's latency over the baseline's."""
        return math.exp(self._logs[self._at[id(entry)]])

    def between(self, slow: TimedPlan, fast: TimedPlan) -> Ratio:
        """How many times slower one plan is than another; its interval is as wide as where they ran side by side."""
        ratio = self.ratio(slow) / self.ratio(fast)
        if slow is fast:
            return Ratio(1.0, 1.0, 1.0)
        direct = speedup(slow, fast)
        return Ratio(ratio, ratio * direct.low / direct.ratio, ratio * direct.high / direct.ratio)

    def latency_us(self, entry: TimedPlan, ours: TimedPlan) -> tuple[float, float, float]:
        """What a plan takes at the pace that the machine had for `ours`: microseconds, and a 95 % interval.

        Plans take part in different comparisons, and a machine may be half as fast a minute later. Medians of each
        plan's own rounds would compare the minutes.
        """
        times = self.between(entry, ours)
        return ours.latency_us * times.ratio, ours.latency_us * times.low, ours.latency_us * times.high

    def margin(self, complex_plan: TimedPlan, simple_plan: TimedPlan) -> float:
        """The standard error of a log ratio of two plans.

        The spread of the simpler plan is that of all plans, so that noise on it alone does not keep it in its place.
        """
        mine, other = self._at[id(complex_plan)], self._at[id(simple_plan)]
        own = max(self._spreads[mine], self._common)
        return math.sqrt(own**2 / self._cells[mine] + self._common**2 / self._cells[other])


Cell = tuple[int, int, float, float, float]
"""Plan, comparison, log latency, its standard error over rounds, weight."""


def _cells(timed: Sequence[TimedPlan]) -> list[Cell]:
    of_comparison: dict[int, list[int]] = {}
    for i, entry in enumerate(timed):
        for comparison, timing in entry.timings.items():
            if timing.samples_us:
                of_comparison.setdefault(comparison, []).append(i)
    judging = [set(entry.judging) for entry in timed]
    cells = []
    for number, (comparison, plans) in enumerate(of_comparison.items()):
        timings = tuple(timed[i].timings[comparison] for i in plans)
        for i, timing, (level, error) in zip(plans, timings, levels(timings), strict=True):
            rounds = sum(timing.weights)
            weight = rounds / (rounds + _HALF_ROUNDS)
            judges = comparison in judging[i]
            cells.append((i, number, level, error, weight if judges else weight * _NOT_JUDGING))
    return cells


@lru_cache(maxsize=4096)
def levels(timings: tuple[PlanTiming, ...]) -> tuple[tuple[float, float], ...]:
    """The log latency of each plan of one comparison, by a median polish of plans and rounds, and its standard error."""
    logs = [np.log(np.asarray(timing.samples_us, float)) for timing in timings]
    weights = [np.asarray(timing.weights, float) for timing in timings]
    rounds = max(map(len, logs))
    table = np.full((len(logs), rounds), np.nan)
    weight = np.zeros((len(logs), rounds))
    for i, (own, own_weights) in enumerate(zip(logs, weights, strict=True)):
        table[i, : len(own)], weight[i, : len(own)] = own, own_weights
    of_round = np.zeros(rounds)
    level = _medians(table, weight)
    for _ in range(_POLISHES):
        of_round = _medians((table - level[:, None]).T, weight.T)
        polished = _medians(table - of_round, weight)
        done = np.max(np.abs(polished - level)) < _CLOSE
        level = polished
        if done:
            break
    off = np.abs(table - of_round - level[:, None])
    errors = _OF_MEDIAN * _medians(off, weight) / np.sqrt(weight.sum(axis=1))
    return tuple(zip(level.tolist(), errors.tolist(), strict=True))


def _medians(table: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The weighted median of each row; in the middle where half of the weight is on either side."""
    filled = np.where(np.isnan(table), np.inf, table)
    order = np.argsort(filled, axis=1, kind="stable")
    values = np.take_along_axis(filled, order, axis=1)
    reached = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1)
    half = reached[:, -1:] / 2
    rows = np.arange(len(table))
    low = values[rows, np.argmax(reached >= half * (1 - _CLOSE), axis=1)]
    high = values[rows, np.argmax(reached > half * (1 + _CLOSE), axis=1)]
    middle: np.ndarray = (low + high) / 2
    return middle


def _fit(cells: Sequence[Cell], plans: int) -> tuple[np.ndarray, np.ndarray]:
    """The estimates, that of the first plan 0, and the errors of all cells."""
    if not cells:
        return np.zeros(plans), np.zeros(0)
    plan, comparison, level, _, weight = (np.asarray(column) for column in zip(*cells, strict=True))
    design = np.zeros((len(cells), plans + int(comparison.max()) + 1))
    design[np.arange(len(cells)), plan] = 1.0
    design[np.arange(len(cells)), plans + comparison] = 1.0
    errors, known = np.zeros(len(cells)), np.zeros(design.shape[1])
    for _ in range(_STEPS):
        robust = weight * _HUBER / np.maximum(np.abs(errors), _HUBER)
        scaled = design * robust[:, None]
        # The smallest solution: a constant may move from plans to comparisons.
        found = np.linalg.lstsq(design.T @ scaled, scaled.T @ level, rcond=1e-12)[0]
        errors = level - design @ found
        done = np.max(np.abs(found - known)) < _CLOSE
        known = found
        if done:
            break
    return known[:plans] - (known[0] if plans else 0.0), errors


def _spreads(cells: Sequence[Cell], errors: np.ndarray, plans: int) -> tuple[np.ndarray, np.ndarray]:
    """The spread of each plan's cells, drawn towards that of all builds, and how many cells it has."""
    squares, of_rounds, count = np.zeros(plans), np.zeros(plans), np.zeros(plans)
    for (plan, _, _, own, weight), error in zip(cells, errors, strict=True):
        if weight > _NOT_JUDGING:
            squares[plan] += weight * error**2
            of_rounds[plan] += weight * own**2
            count[plan] += weight
    count = np.maximum(count, _NOT_JUDGING)
    of_builds = (_PRIOR_CELLS * BUILD_SPREAD**2 + squares) / (_PRIOR_CELLS + count)
    return np.sqrt(of_builds + of_rounds / count), count


def _common_spread(cells: Sequence[Cell], errors: np.ndarray, plans: int) -> float:
    """The spread of cells in the median over plans, as far as there are more cells than unknowns."""
    judged = [abs(e) for (*_, weight), e in zip(cells, errors, strict=True) if weight > _NOT_JUDGING]
    free = len(judged) - plans - len({comparison for _, comparison, *_ in cells}) + 1
    if free <= 0:
        return BUILD_SPREAD
    scale = 1.4826 * float(np.median(judged)) * math.sqrt(len(judged) / free)
    return math.sqrt((_PRIOR_CELLS * BUILD_SPREAD**2 + free * scale**2) / (_PRIOR_CELLS + free))

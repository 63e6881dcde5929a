"""One-sided intervals of a drop between two models on the same samples.

Source: Clopper and Pearson 1934 for shares; Tango 1998, "Equivalence test and confidence interval for the
difference in proportions for the paired-sample design"; Efron 1979 for the bootstrap, here of percentiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Array = np.ndarray

CONFIDENCE = 0.95
# Tango's interval with the normal 1.645 covers too little where few samples changed; with this one it covers
# 95 % for every share that is lost or gained, unless more are gained.
_SCORE = 1.75
_STEPS = 60
_DRAWS = 1000


def share_upper(count: int, total: int, confidence: float = CONFIDENCE) -> float:
    """The upper end of Clopper and Pearson's one-sided interval of a share."""
    if count >= total:
        return 1.0
    return _solve(lambda share: _cumulative(count, total, share) > 1 - confidence)


def share_lower(count: int, total: int, confidence: float = CONFIDENCE) -> float:
    """The lower end of Clopper and Pearson's one-sided interval of a share."""
    return 1.0 - share_upper(total - count, total, confidence)


def difference_upper(lost: int, gained: int, total: int) -> float:
    """The upper end of Tango's one-sided interval of the share that is lost less the share that is gained.

    Args:
        lost: samples that were right and are wrong now.
        gained: samples that were wrong and are right now.
        total: all samples.
    """
    estimate = (lost - gained) / total

    def is_possible(difference: float) -> bool:
        a = 2 * total
        b = -lost - gained + (2 * total - lost + gained) * difference
        c = -gained * difference * (1 - difference)
        share_gained = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
        variance = (2 * share_gained + difference * (1 - difference)) / total
        return difference <= estimate or estimate - difference > -_SCORE * math.sqrt(max(0.0, variance))

    return _solve(is_possible) if is_possible(0.0) else max(estimate, 0.0)


def bootstrap_upper(
    value: Callable[[Array], float], samples: int, confidence: float = CONFIDENCE, draws: int = _DRAWS
) -> float:
    """The upper end of the one-sided percentile interval of a statistic.

    Args:
        value: of the samples with these indexes.
        samples: how many there are.
        confidence: of the interval.
        draws: how many times samples are drawn, from a fixed seed.
    """
    random = np.random.default_rng(0)
    found = [value(random.integers(0, samples, samples)) for _ in range(draws)]
    return float(np.quantile(found, confidence))


def samples_for_share(share: float, limit: float, confidence: float = CONFIDENCE) -> int | None:
    """How many samples prove that a share stays within a limit, were the share of failures this one.

    Returns:
        The number; None where no number does, since the share is not below the limit.
    """
    if share >= limit:
        return None
    low, high = 1, 2
    while share_upper(math.ceil(share * high), high, confidence) > limit:
        low, high = high, high * 2
        if high > 10**8:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        if share_upper(math.ceil(share * middle), middle, confidence) > limit:
            low = middle
        else:
            high = middle
    return high


def _solve(is_below: Callable[[float], bool]) -> float:
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high


def _cumulative(count: int, total: int, share: float) -> float:
    """The probability of at most so many of a total."""
    if share <= 0.0:
        return 1.0
    if share >= 1.0:
        return float(count >= total)
    found = np.arange(count + 1)
    ways = np.array(
        [math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) for k in found]
    )
    logs = ways + found * math.log(share) + (total - found) * math.log1p(-share)
    return float(np.exp(logs).sum())

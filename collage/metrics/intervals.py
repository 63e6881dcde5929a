"""One-sided intervals of a drop between two models on the same samples.

Source: Clopper and Pearson 1934 for shares; Tango 1998, "Equivalence test and confidence interval for the
difference in proportions for the paired-sample design"; Efron 1979 for the bootstrap, here of percentiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

Array = np.ndarray

CONFIDENCE = 0.95
# Tango's interval covers too little where few samples changed. With this share of the doubt it covers as it says
# for every share that is lost or gained, unless more are gained.
_CAUTION = 0.8
_STEPS = 60
_DRAWS = 1000
# Draws know no quantile beyond this one.
_MOST_OF_DRAWS = 0.99
# Of a sum of probabilities: terms so many standard deviations away are nothing.
_FAR, _LEAST_TERMS = 10.0, 50
_TOO_MANY = 10**8


def share_upper(count: int, total: int, confidence: float = CONFIDENCE) -> float:
    """The upper end of Clopper and Pearson's one-sided interval of a share."""
    if count >= total:
        return 1.0
    return _solve(lambda share: _is_below_upper(count, total, share, confidence))


def share_lower(count: int, total: int, confidence: float = CONFIDENCE) -> float:
    """The lower end of Clopper and Pearson's one-sided interval of a share."""
    return 1.0 - share_upper(total - count, total, confidence)


def difference_upper(lost: int, gained: int, total: int, confidence: float = CONFIDENCE) -> float:
    """The upper end of Tango's one-sided interval of the share that is lost less the share that is gained.

    Args:
        lost: samples that were right and are wrong now.
        gained: samples that were wrong and are right now.
        total: all samples.
        confidence: of the interval.
    """
    estimate = (lost - gained) / total
    score = _normal(1 - _CAUTION * (1 - confidence))

    def is_possible(difference: float) -> bool:
        a = 2 * total
        b = -lost - gained + (2 * total - lost + gained) * difference
        c = -gained * difference * (1 - difference)
        share_gained = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
        variance = (2 * share_gained + difference * (1 - difference)) / total
        return difference <= estimate or estimate - difference > -score * math.sqrt(max(0.0, variance))

    return _solve(is_possible) if is_possible(0.0) else max(estimate, 0.0)


def bootstrap_upper(
    value: Callable[[Array], float], samples: int, confidence: float = CONFIDENCE, draws: int = _DRAWS
) -> float:
    """The upper end of the one-sided percentile interval of a statistic.

    Beyond the quantiles that the draws know, the interval is as much wider as a normal one.

    Args:
        value: of the samples with these indexes.
        samples: how many there are.
        confidence: of the interval.
        draws: how many times samples are drawn, from a fixed seed.
    """
    random = np.random.default_rng(0)
    found = [value(random.integers(0, samples, samples)) for _ in range(draws)]
    known = min(confidence, _MOST_OF_DRAWS)
    middle, upper = map(float, np.quantile(found, [0.5, known]))
    return middle + (upper - middle) * _normal(confidence) / _normal(known)


def samples_for_share(share: float, limit: float, confidence: float = CONFIDENCE) -> int | None:
    """How many samples prove that a share stays within a limit, were the share of failures this one.

    Returns:
        The number; None where no number does, since the share is not below the limit.
    """
    if share >= limit:
        return None

    def proves(number: int) -> bool:
        return not _is_below_upper(math.ceil(share * number), number, limit, confidence)

    low, high = 1, 2
    while not proves(high):
        low, high = high, high * 2
        if high > _TOO_MANY:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if proves(middle) else (middle, high)
    return high


def _is_below_upper(count: int, total: int, share: float, confidence: float) -> bool:
    """Whether a share is below the upper end of the interval of so many of a total."""
    # Then the median is at most the count.
    return share * total <= count or _cumulative(count, total, share) > 1 - confidence


def _normal(confidence: float) -> float:
    return NormalDist().inv_cdf(confidence)


def _solve(is_below: Callable[[float], bool]) -> float:
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return high


def _cumulative(count: int, total: int, share: float) -> float:
    """The probability of at most so many of a total, of which the share expects more."""
    if share >= 1.0:
        return float(count >= total)
    ways = math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)
    last = ways + count * math.log(share) + (total - count) * math.log1p(-share)
    # Each term over the one above it; they fall from the last one on.
    terms = min(count, int(_FAR * math.sqrt(count)) + _LEAST_TERMS)
    found = np.arange(count, count - terms, -1)
    ratios = found / (total - found + 1) * ((1 - share) / share)
    return math.exp(last) * (1.0 + float(np.cumprod(ratios).sum()))

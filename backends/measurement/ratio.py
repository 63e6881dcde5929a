"""How many times slower one plan is than another, from samples taken in pairs, with its 95 % interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Student's 97.5 % quantiles for three builds (two degrees of freedom), four … ten, and more.
_FOR_STUDENT = 3
_STUDENT_975 = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Ratio:
    """How many times slower A is than B: the median of paired ratios and its 95 % interval."""

    ratio: float
    low: float
    high: float


def compare_builds(
    builds: Sequence[tuple[Sequence[float], Sequence[float]]], resamples: int = 2000
) -> Ratio:
    """How many times slower A is than B over several builds of both, each timed in a process of its own.

    Builds differ by where their memory lies, which no number of rounds of one build shows. The ratio is
    the geometric mean of the builds' medians. Its interval is Student's from three builds on, else a
    bootstrap over builds and pairs (docs/decisions/0006-intervals-over-builds.md).

    Args:
        builds: per build the samples of A and of B; the i-th of each were taken right after each other.
        resamples: of the bootstrap, whose seed is fixed.

    Raises:
        ValueError: there are no builds, or a build has no pairs, or of one more than of the other.
    """
    for samples_a, samples_b in builds:
        if len(samples_a) != len(samples_b) or not samples_a:
            raise ValueError(f"{len(samples_a)} and {len(samples_b)} samples are no pairs")
    if not builds:
        raise ValueError("there are no builds")
    logs = [np.log(np.asarray(a, float)) - np.log(np.asarray(b, float)) for a, b in builds]
    own_medians = [float(np.median(own)) for own in logs]
    middle = statistics.fmean(own_medians)
    if len(builds) >= _FOR_STUDENT:
        wide = _STUDENT_975[min(len(builds) - _FOR_STUDENT, len(_STUDENT_975) - 1)]
        off = wide * statistics.stdev(own_medians) / math.sqrt(len(builds))
        return Ratio(math.exp(middle), math.exp(middle - off), math.exp(middle + off))
    generator = np.random.Generator(np.random.PCG64(0))
    means = np.zeros(resamples)
    for _ in builds:
        drawn = [own[generator.integers(0, len(own), size=(resamples, len(own)))] for own in logs]
        medians = np.stack([np.median(own, axis=1) for own in drawn])
        chosen = generator.integers(0, len(builds), size=resamples)
        means += medians[chosen, np.arange(resamples)] / len(builds)
    low, high = np.quantile(means, [0.025, 0.975])
    return Ratio(math.exp(middle), float(np.exp(low)), float(np.exp(high)))

"""Callables timed in turn, and two of them compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from collage.backends.measurement.ratio import Ratio, compare_builds


def interleave(
    runners: Mapping[str, Callable[[], None]],
    rounds: int = 16,
    block_s: float = 0.15,
    budget_s: float | None = None,
) -> dict[str, list[float]]:
    """Time several callables in turn: sample i of each was taken within the same moment.

    In each round every runner gets one block of calls, whose first is thrown away and whose median is
    the sample; the first one changes with the round.

    Args:
        runners: callables by name.
        rounds: how many rounds.
        block_s: time of one block (three calls at the least).
        budget_s: no round begins after this time; three are always made.

    Returns:
        Samples in microseconds by name, of equal number.
    """
    samples: dict[str, list[float]] = {name: [] for name in runners}
    names = list(runners)
    begin = time.perf_counter()
    for number in range(rounds):
        if number >= 3 and budget_s is not None and time.perf_counter() - begin > budget_s:
            break
        turn = number % max(1, len(names))
        for name in names[turn:] + names[:turn]:
            samples[name].append(_block(runners[name], block_s))
    return samples


def _block(run: Callable[[], None], block_s: float) -> float:
    run()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < block_s:
        start = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(times)


def compare(samples_a: Sequence[float], samples_b: Sequence[float], resamples: int = 2000) -> Ratio:
    """How many times slower A is than B, from samples taken in pairs.

    Args:
        samples_a: of A, in order of time.
        samples_b: of B; the i-th was taken right before or after A's i-th.
        resamples: of the bootstrap over pairs, whose seed is fixed.

    Raises:
        ValueError: there are no pairs, or of one more than of the other.
    """
    return compare_builds([(samples_a, samples_b)], resamples)

"""Timing that can be believed on a machine that is never quiet.

Terms: a *sample* is the time of one call (of several in a row where one is too short for the clock).
Half the width of the median's 95 % confidence interval, from order statistics and so for any
distribution, is its *spread*. The *yardstick* is a fixed computation on one core whose time tells
whether the machine itself became faster or slower meanwhile.

Invariants: warm-up calls are never part of the samples; what prepares a call (eviction of caches,
writing of inputs) is never part of its time; times are in microseconds.

Source: order-statistics intervals as in Hoefler & Belli, "Scientific benchmarking of parallel
computing systems" (SC'15); paired ratios against drifting machines, see docs/measurement.md.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from collage.backends.measurement.protocol import Protocol

Prepare = Callable[[], None]

_SHORT_SAMPLE_S = 2e-3
_MAX_SAMPLES, _FEWEST_SLOW = 600, 2
_Z95 = 1.96
# Student's 97.5 % quantiles, of three builds (two degrees of freedom), four … ten; more are taken like ten.
_FOR_STUDENT = 3
_STUDENT_975 = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
_YARDSTICK_TRIES = 7
# Of what a model touches, most is weights, which are read only.
_WRITTEN_SHARE = 8


@dataclass(frozen=True)
class Timing:
    """Samples of one executable.

    Args:
        samples_us: in order of time.
        yardstick_us: of the quieter of before and after.
        yardstick_moved: share by which it moved between before and after.
        foreign_load: share of this process's cores that other processes used meanwhile.
    """

    samples_us: tuple[float, ...]
    yardstick_us: float
    yardstick_moved: float
    foreign_load: float

    @property
    def disturbance(self) -> float:
        """How much the machine changed or was used by others; 0 on a quiet one."""
        return max(self.yardstick_moved, self.foreign_load)

    @property
    def median_us(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples_us)

    @property
    def spread_us(self) -> float:
        """Half the width of the median's 95 % confidence interval."""
        return median_spread(self.samples_us)


@dataclass(frozen=True)
class Ratio:
    """How many times slower A is than B: the median of paired ratios and its 95 % interval."""

    ratio: float
    low: float
    high: float


def time_runs(run: Callable[[], None], protocol: Protocol, prepare: Prepare | None = None) -> Timing:
    """Time a callable until the protocol is content; repeated where the machine changed meanwhile.

    Args:
        run: what is timed.
        protocol: how.
        prepare: called before each sample, untimed.
    """
    best: Timing | None = None
    for _ in range(protocol.retries + 1):
        before = yardstick_us()
        usage = _Usage()
        samples = sample_runs(run, protocol, prepare)
        foreign = usage.of_others()
        after = yardstick_us()
        moved = abs(after - before) / min(before, after)
        timing = Timing(tuple(samples), min(before, after), moved, foreign)
        if best is None or timing.disturbance < best.disturbance:
            best = timing
        if timing.disturbance <= protocol.disturbance or timing.median_us > protocol.max_s * 1e6:
            break
    assert best is not None
    return best


def sample_runs(
    run: Callable[[], None], protocol: Protocol, prepare: Prepare | None = None
) -> list[float]:
    """Samples in microseconds until the protocol is content; `time_runs` also watches the machine.

    A call that takes longer than the protocol has time for is made twice, and counts both times.
    """
    once_s = _warm_up(run, protocol, prepare)
    fewest, samples = protocol.min_runs, []
    if once_s > protocol.max_s:
        fewest, samples = _FEWEST_SLOW, [once_s * 1e6]
    clock = time.perf_counter_ns
    # Where caches are emptied first, only the call right after that counts.
    calls = 1 if protocol.evict_bytes else max(1, math.ceil(_SHORT_SAMPLE_S / max(once_s, 1e-7)))
    begin = clock()
    timed_ns = 0
    check_at = fewest
    while True:
        if prepare is not None:
            prepare()
        start = clock()
        for _ in range(calls):
            run()
        taken = clock() - start
        samples.append(taken / calls / 1e3)
        timed_ns += taken
        if len(samples) < check_at:
            continue
        check_at = len(samples) + max(1, len(samples) // 8)  # sorting at each sample would cost more
        over = (clock() - begin) / 1e9 >= protocol.max_s or len(samples) >= _MAX_SAMPLES
        steady = median_spread(samples) <= protocol.precision * statistics.median(samples)
        if over or (steady and timed_ns / 1e9 >= protocol.min_s):
            return samples


def _warm_up(run: Callable[[], None], protocol: Protocol, prepare: Prepare | None) -> float:
    """Run without counting; the shortest run's time in seconds."""
    begin = time.perf_counter()
    shortest = math.inf
    runs = 0
    while runs < 2 or time.perf_counter() - begin < protocol.warm_up_s:
        if prepare is not None:
            prepare()
        start = time.perf_counter()
        run()
        shortest = min(shortest, time.perf_counter() - start)
        runs += 1
        if shortest > protocol.max_s:  # it takes seconds: once is all there is time for
            break
    return shortest


def median_spread(samples: Sequence[float]) -> float:
    """Half the width of the 95 % confidence interval of the median.

    With fewer than six samples no interval of order statistics reaches 95 %: the whole range counts.
    """
    ordered = sorted(samples)
    n = len(ordered)
    if n == 0:
        return math.inf
    reach = _Z95 * math.sqrt(n) / 2
    low = max(0, math.floor((n - 1) / 2 - reach))
    high = min(n - 1, math.ceil((n - 1) / 2 + reach))
    return (ordered[high] - ordered[low]) / 2


class Evictor:
    """Walks through memory to leave caches as the other parts of a model would.

    Like them it mostly reads (weights), writes a little (intermediate values), and does so on all cores at once.

    Args:
        size_bytes: how much memory, all threads together.
        threads: how many walk, each through its own share.
    """

    def __init__(self, size_bytes: int, threads: int) -> None:
        length = max(1, size_bytes // 8 // threads)
        self._shares = [np.ones(length, dtype=np.int64) for _ in range(threads)]
        self._others = ThreadPoolExecutor(threads)  # starts those that are given work

    def __call__(self) -> None:
        own, *shares = self._shares
        others = [self._others.submit(_walk, share) for share in shares]
        _walk(own)
        for other in others:
            other.result()


def _walk(memory: np.ndarray) -> None:
    memory.sum()
    written = memory[: len(memory) // _WRITTEN_SHARE]
    np.add(written, 1, out=written)


@lru_cache(maxsize=4)
def _evictor(size_bytes: int, threads: int) -> Evictor:
    """One for each size: several measurements in one process share its memory."""
    return Evictor(size_bytes, threads)


def preparation(
    protocol: Protocol, buffers: Sequence[np.ndarray], values: Sequence[np.ndarray], threads: int
) -> Prepare | None:
    """What the protocol wants done before each timed call.

    Args:
        buffers: the bound inputs.
        values: what is to be in them.
        threads: of the rest of the model, which used the caches.
    """
    evict = _evictor(protocol.evict_bytes, threads) if protocol.evict_bytes else None
    pairs = list(zip(buffers, values, strict=True)) if protocol.fresh_inputs else []
    if evict is None and not pairs:
        return None

    def prepare() -> None:
        if evict is not None:
            evict()
        for buffer, value in pairs:
            np.copyto(buffer, value)

    return prepare


class _Usage:
    """Who uses the cores that this process may run on, from here on.

    The yardstick sees that a core became slower, but not that another process took one of several:
    this does.
    """

    def __init__(self) -> None:
        self._begin = (time.perf_counter(), self._busy_s(), time.process_time())

    def of_others(self) -> float:
        """Share of the cores used by other processes; 0 where the system does not say."""
        now = (time.perf_counter(), self._busy_s(), time.process_time())
        wall, busy, own = (b - a for a, b in zip(self._begin, now, strict=True))
        cores = len(self._cores())
        # The system counts in ticks of 10 ms: with less than that nothing can be said.
        return max(0.0, busy - own - 0.02) / max(wall * cores, 1e-9) if cores else 0.0

    @staticmethod
    def _cores() -> set[int]:
        return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()

    def _busy_s(self) -> float:
        names = {f"cpu{number}" for number in self._cores()}
        ticks = 0
        with contextlib.suppress(OSError):
            for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines():
                fields = line.split()
                if fields and fields[0] in names:
                    user, nice, system, _, _, irq, soft_irq, *_ = map(int, fields[1:])
                    ticks += user + nice + system + irq + soft_irq
        return ticks / os.sysconf("SC_CLK_TCK")


_YARDSTICK: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None = None


def yardstick_us() -> float:
    """Time of a fixed piece of work on one core: a product in the cache and a walk through memory.

    The fastest of several tries, so that a worker thread that is just going to sleep does not count.
    """
    global _YARDSTICK
    if _YARDSTICK is None:
        side, length = 160, 1 << 19
        square = np.linspace(-1, 1, side * side, dtype=np.float32).reshape(side, side)
        _YARDSTICK = (square, np.empty_like(square), np.ones(length), np.ones(length))
    square, product, source, sink = _YARDSTICK
    fastest = math.inf
    for _ in range(_YARDSTICK_TRIES):
        begin = time.perf_counter_ns()
        for _ in range(2):
            np.matmul(square, square, out=product)
        np.multiply(source, 1.0001, out=sink)
        fastest = min(fastest, (time.perf_counter_ns() - begin) / 1e3)
    return fastest


def interleave(
    runners: Mapping[str, Callable[[], None]],
    rounds: int = 16,
    block_s: float = 0.15,
    budget_s: float | None = None,
) -> dict[str, list[float]]:
    """Time several callables in turn: sample i of each was taken within the same moment.

    In each round every runner gets one block of calls, whose first is thrown away and whose median is
    the sample; who begins changes with the round.

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


def compare_builds(
    builds: Sequence[tuple[Sequence[float], Sequence[float]]], resamples: int = 2000
) -> Ratio:
    """How many times slower A is than B over several builds of both, each timed in a process of its own.

    Two builds of the same plans differ by some 4 % (one standard deviation), by where their memory lies, and
    no number of rounds with one of them tells. So from three builds on it is Student's interval of the mean of the
    builds' medians, in logarithms: a bootstrap of so few is too narrow (docs/refinement.md). Of one or two
    builds it is the bootstrap, which draws builds, then pairs within each. The ratio is the geometric mean of the builds' medians.

    Args:
        builds: per build the samples of A and of B, as for `compare`.
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

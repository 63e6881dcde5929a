"""Samples of one call, and how far they can be trusted.

Terms: a *sample* is the time of one call, or the mean of several where one is too short for the clock.
Its *spread* is half the width of the median's 95 % confidence interval, from order statistics. The
*yardstick* is a fixed computation on one core, whose time tells whether the machine itself became
faster or slower.

Invariants: warm-up calls are not samples; preparing a call (eviction of caches, writing of inputs) is
not timed.

Source: intervals as in Hoefler & Belli, "Scientific benchmarking of parallel computing systems"
(SC'15).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from collage.backends.machine.load import LoadMeter, cores
from collage.backends.measurement.protocol import Protocol

Prepare = Callable[[], None]

_SHORT_SAMPLE_S = 2e-3
_MAX_SAMPLES, _FEWEST_SLOW = 600, 2
_Z95 = 1.96
_YARDSTICK_TRIES = 7
# Of what a model touches, most is weights, which are read only.
_WRITTEN_SHARE = 8


@dataclass(frozen=True)
class Timing:
    """Samples of one executable."""

    samples_us: tuple[float, ...]  # in order of time
    yardstick_us: float  # the shorter one of before and after
    yardstick_moved: float  # share by which it moved between before and after
    foreign_load: float  # share of this process's cores that other processes used meanwhile

    @property
    def disturbance(self) -> float:
        """How much the machine changed or other processes used it; 0 on a quiet one."""
        return max(self.yardstick_moved, self.foreign_load)

    @property
    def median_us(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples_us)

    @property
    def spread_us(self) -> float:
        """Half the width of the median's 95 % confidence interval."""
        return median_spread(self.samples_us)


def time_runs(run: Callable[[], None], protocol: Protocol, prepare: Prepare | None = None) -> Timing:
    """Time a callable until the protocol is content; repeated where the machine changed meanwhile.

    Args:
        prepare: called before each sample, untimed.
    """
    best: Timing | None = None
    for _ in range(protocol.retries + 1):
        before = yardstick_us()
        load = LoadMeter()
        samples = sample_runs(run, protocol, prepare)
        foreign = load.others() / max(1, len(cores()))
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
    """Run untimed; returns the shortest run's time in seconds."""
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
    """Walks through memory on all cores, and so leaves caches as the rest of a model would.

    It mostly reads, as weights are read, and writes a little.

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
    """What the protocol asks for before each timed call, or None.

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


_YARDSTICK: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None = None


def yardstick_us() -> float:
    """Time of fixed work on one core, a product in the cache and a walk through memory: the fastest of several tries."""
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

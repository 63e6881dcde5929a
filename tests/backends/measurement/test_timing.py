"""Timing: medians with honest intervals, paired ratios, preparation that is never timed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from collage.backends.measurement.protocol import Protocol, eviction_for
from collage.backends.measurement.timing import (
    Evictor,
    median_spread,
    preparation,
    time_runs,
    yardstick_us,
)

QUICK = Protocol(min_s=0.01, max_s=0.1, warm_up_s=0.0, retries=0)


def _sleep(seconds: float) -> Callable[[], None]:
    return lambda: time.sleep(seconds)


def test_spread_covers_the_true_median_19_times_in_20() -> None:
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        samples = generator.exponential(size=40)  # skewed, as times are
        low = np.median(samples) - 2 * median_spread(samples.tolist())
        high = np.median(samples) + 2 * median_spread(samples.tolist())
        hits += low <= np.log(2) <= high
    assert hits >= 0.95 * 400


def test_spread_of_few_samples_is_their_whole_range() -> None:
    assert median_spread([]) == float("inf")
    assert median_spread([5.0]) == 0
    assert median_spread([1, 2, 9]) == 4


def test_precision_grows_with_samples() -> None:
    generator = np.random.default_rng(1)
    few = median_spread(generator.normal(100, 5, 20).tolist())
    many = median_spread(generator.normal(100, 5, 2000).tolist())
    assert many < few / 3


@pytest.mark.slow
def test_preparation_is_not_timed() -> None:
    timing = time_runs(_sleep(0.001), QUICK, _sleep(0.01))
    assert 1000 < timing.median_us < 10_000
    assert len(timing.samples_us) >= QUICK.min_runs


def test_slow_kernels_run_no_more_than_needed() -> None:
    calls = 0

    def slow() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.03)

    time_runs(slow, QUICK)
    assert calls <= 2 + QUICK.min_runs


@pytest.mark.slow
def test_a_call_that_takes_all_the_time_there_is_is_made_twice() -> None:
    """A hopeless runtime must not take the time of the others, whatever else the machine does."""
    impatient = Protocol(min_s=0.01, max_s=0.02, warm_up_s=0.5, disturbance=-1, retries=2)
    calls = 0

    def slow() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.05)

    timing = time_runs(slow, impatient)
    assert calls == 2 == len(timing.samples_us)
    assert min(timing.samples_us) > 50_000


@pytest.mark.slow
def test_short_calls_are_timed_in_a_row() -> None:
    calls = 0

    def short() -> None:
        nonlocal calls
        calls += 1

    timing = time_runs(short, QUICK)
    assert timing.median_us < 100  # the many calls in a row count as one each
    assert calls > 100 * len(timing.samples_us)


@pytest.mark.slow
def test_measurement_is_repeated_while_the_machine_is_disturbed() -> None:
    calls = 0

    def run() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.002)

    never_content = Protocol(precision=10, min_s=0, warm_up_s=0, min_runs=3, disturbance=-1, retries=2)
    time_runs(run, never_content)
    assert calls == 3 * (2 + 3)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="Linux counts ticks there")
def test_other_processes_are_noticed() -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        time.sleep(0.2)
        slow = Protocol(min_s=0.3, max_s=0.3, warm_up_s=0, retries=0)
        timing = time_runs(_sleep(0.01), slow)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert timing.foreign_load > 1 / (os.cpu_count() or 1) / 4
    assert timing.disturbance >= timing.foreign_load


def test_the_yardstick_is_the_time_of_one_try_of_several() -> None:
    yardstick_us()  # its arrays are made
    begin = time.perf_counter()
    found_us = yardstick_us()
    assert 0 < found_us <= (time.perf_counter() - begin) * 1e6 / 5


def test_preparation_writes_inputs_and_walks_through_memory() -> None:
    buffer, value = np.zeros(4), np.arange(4.0)
    prepare = preparation(Protocol(evict_bytes=1 << 20), [buffer], [value], 2)
    assert prepare is not None
    prepare()
    np.testing.assert_array_equal(buffer, value)
    assert preparation(Protocol(fresh_inputs=False), [buffer], [value], 2) is None


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_all_threads_together_walk_through_what_is_to_be_evicted(threads: int) -> None:
    evictor = Evictor(1 << 20, threads)
    assert sum(share.nbytes for share in evictor._shares) == 1 << 20
    evictor()
    written = [np.count_nonzero(share - 1) for share in evictor._shares]
    assert written == [(1 << 20) // 8 // threads // 8] * threads


def test_the_digest_is_of_everything_in_the_protocol() -> None:
    assert Protocol().digest == Protocol().digest
    assert Protocol().digest != Protocol(evict_bytes=1 << 20).digest
    assert Protocol().digest != Protocol(fresh_inputs=False).digest


def test_evicted_bytes_are_the_models_but_no_more_than_needed() -> None:
    mib = 1 << 20
    assert eviction_for(mib // 2, 32 * mib) == 0
    assert eviction_for(20 * mib, 32 * mib) == 16 * mib
    assert eviction_for(31 * mib, 32 * mib) == 32 * mib
    assert eviction_for(1000 * mib, 32 * mib) == 64 * mib

"""Measures a setting in the child: instances are built and verified, then clients ask all at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from collage.backends.machine.resident_memory import peak_bytes
from collage.backends.numerics.comparison import Expected
from collage.backends.numerics.tensor_files import read_expected, read_samples
from collage.objectives.trial import Trial, TrialRequest
from collage.partitioner.errors import CollageError
from collage.runtime.compiled import CompiledRegions, in_short
from collage.runtime.executor import Executor
from collage.runtime.instances import PlannedStep, executors
from collage.runtime.joined import JoinedRequests
from collage.runtime.pipeline import Pipeline
from collage.runtime.requests import Requests
from collage.timing.request import TimingRequest

Call = Callable[[], object]
_LEAST_ANSWERS = 3
# Until then threads start, and memory is touched for the first time.
_WARM_UP_S = 0.2
_TIMED_RUNS = 20
# Clients that are not through by then hang.
_START_S = 300.0


def run_trial(request: TrialRequest) -> Trial:
    """Measure a setting; runs in the child."""
    begin = time.perf_counter()
    try:
        compiled, instances, error = _built(request)
    except Exception as failure:
        return Trial(failure=in_short(failure))
    load_s = time.perf_counter() - begin
    limit = request.timing.error_limit
    if limit is not None and not error <= limit:
        return Trial(error=error, failure=f"its error {error:.3g} exceeds {limit:.3g}")
    try:
        sample = read_samples(request.timing.samples_file, request.timing.inputs)[0]
        times = _asked_by_clients(instances, sample, request)
    except Exception as failure:
        return Trial(error=error, failure=in_short(failure))
    finally:
        for instance in instances:
            instance.close()
        compiled.close()
    every = [us for own in times for us in own]
    return Trial(
        # A client has one row, so each answer is one request.
        throughput=sum(len(own) * 1e6 / sum(own) for own in times),
        median_us=float(np.median(every)),
        p99_us=float(np.percentile(every, 99)),
        requests=len(every),
        peak_rss_bytes=peak_bytes(),
        load_s=load_s,
        error=error,
    )


def _built(request: TrialRequest) -> tuple[CompiledRegions, list[Executor], float]:
    timing = request.timing
    (plan,) = timing.plans
    # A stage computes one request at a time.
    at_once = 1 if request.stages else request.instances
    compiled = CompiledRegions(timing.threads, timing.cache_dir, at_once)
    steps = [PlannedStep(s.region, timing.regions[s.region], s.target) for s in plan.steps]
    made = executors(
        compiled,
        steps,
        timing.inputs,
        timing.outputs,
        lanes=min(plan.lanes, timing.threads) if request.instances > 1 else plan.lanes,
        instances=request.instances,
    )
    samples = read_samples(timing.samples_file, timing.inputs)
    expected = read_expected(timing.expected_file, ())
    return compiled, made, max(_error(each, timing, samples, expected) for each in made)


def step_times_us(timing: TimingRequest) -> tuple[float, ...]:
    """Median time of each partition of a plan, one request at a time; runs in the child."""
    compiled, (executor,), _ = _built(TrialRequest(timing, 1, 0.0))
    try:
        runs = [executor.run_timed() for _ in range(_TIMED_RUNS)]
        return tuple(float(np.median(each)) for each in zip(*runs, strict=True))
    finally:
        executor.close()
        compiled.close()


def _error(
    executor: Executor,
    timing: TimingRequest,
    samples: Sequence[Mapping[str, np.ndarray]],
    expected: Sequence[Mapping[str, Expected]],
) -> float:
    largest = 0.0
    for sample, wanted in zip(samples, expected, strict=True):
        executor.feed(sample)
        executor.run()
        largest = max(largest, timing.error(executor.results(), wanted))
    return largest


def _asked_by_clients(
    instances: Sequence[Executor], sample: Mapping[str, np.ndarray], request: TrialRequest
) -> list[list[float]]:
    """The time of each request of each client, in microseconds; those of the warm-up are left out."""
    asks, close = _requests(instances, sample, request)
    start = threading.Barrier(len(asks))
    try:
        with ThreadPoolExecutor(len(asks)) as clients:
            asked = [clients.submit(_ask, ask, start, request.seconds) for ask in asks]
            return [each.result() for each in asked]
    finally:
        close()


def _requests(
    instances: Sequence[Executor], sample: Mapping[str, np.ndarray], request: TrialRequest
) -> tuple[list[Call], Call]:
    """A request of each client as a session computes it, and what ends the pool."""
    names = request.timing.outputs
    clients = max(request.clients, len(instances) * request.rows)
    if request.stages:
        if not all(each.is_fixed for each in instances):
            raise CollageError("a pipeline needs shapes that are known before the run")
        stages = Pipeline(instances, request.stages)
        return [partial(stages.run, names, sample)] * clients, stages.close
    if request.rows == 1:
        pool = Requests(instances)

        def call(executor: Executor) -> object:
            executor.feed(sample)
            executor.run()
            return executor.results()

        return [partial(pool.run, call)] * clients, pool.close
    rows = JoinedRequests(instances, request.rows)
    singles = [{n: a[i : i + 1] for n, a in sample.items()} for i in range(request.rows)]
    asks: list[Call] = [partial(rows.run, names, singles[i % len(singles)]) for i in range(clients)]
    return asks, rows.close


def _ask(ask: Call, start: threading.Barrier, seconds: float) -> list[float]:
    start.wait(_START_S)
    clock = time.perf_counter
    warm = clock() + min(_WARM_UP_S, seconds)
    ask()
    while clock() < warm:
        ask()
    times: list[float] = []
    last = clock()
    end = last + seconds
    while last < end or len(times) < _LEAST_ANSWERS:
        ask()
        now = clock()
        times.append((now - last) * 1e6)
        last = now
    return times

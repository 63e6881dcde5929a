"""Times whole plans against each other: interleaved, in one child, as `load` will run them.

Terms: a *round* times one block of calls of every plan still in the run_rounds; a block's first call is
thrown away and its median kept, so that sample *i* of every plan was taken within the same second.
Ratios are therefore taken round by round. Rounds in which the cores were further apart than they can be are left out,
where there are others (`collage.backends.machine.core_distance`). Before it is timed every plan is verified on every sample.

Invariants: a plan that crashes the child is marked as failed and the others start again without it;
a plan is dropped early only when it is slower than the best by more than noise explains.

Source: the protocol follows what docs/measurement.md found out about noise on small machines.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress

import numpy as np

from collage.backends.machine.core_distance import CoreWatch, counting
from collage.backends.numerics.comparison import Expected, output_error
from collage.backends.numerics.tensor_files import read_expected, read_samples
from collage.backends.sandbox.run import send_message
from collage.runtime.compiled import CompiledRegions, in_short
from collage.runtime.executor import Executor, Step
from collage.timing.request import HOPELESS_RATIO, NO_TIME, PlanTiming, TimingRequest

_MIN_CALLS = 3
_MIN_ROUNDS = 3
# Rounds that do not count are made up for, until there were so many times as many.
_MOST_ROUNDS = 1.5
_MAX_CALLS = 60
_PRUNE_AFTER_ROUNDS = 4
# Who takes so long for one call, and so many times as long as the fastest, is not called again and again: a layer
# without a fast kernel (ncnn's 3-D convolutions) would take minutes.
_SLOW_US, _FAR_BEHIND = 0.5e6, 10.0


@dataclass
class _Runner:
    position: int
    executor: Executor
    stated_us: tuple[float, ...] = ()
    once_us: float = 0.0
    calls: int = 1
    samples: list[float] = field(default_factory=list)
    steps: list[list[float]] = field(default_factory=list)
    error: float = 0.0

    def keep(self, counted: Sequence[bool]) -> None:
        """Forget the other rounds."""
        self.samples = list(compress(self.samples, counted))
        self.steps = list(compress(self.steps, counted))


def run_rounds(request: TimingRequest, skip: list[int]) -> list[PlanTiming]:
    """Time the plans but those to skip; runs in the child."""
    compiled = CompiledRegions(request.threads, request.cache_dir)
    samples = read_samples(request.samples_file, request.inputs)
    expected = read_expected(request.expected_file, ())
    results = [PlanTiming(failure="not run") for _ in request.plans]
    runners: list[_Runner] = []
    begin_s = time.monotonic()
    limit_s = math.inf if request.prepare_s is None else request.prepare_s
    for position in _building_order(request):
        if position in skip:
            continue
        if position >= request.needed and time.monotonic() - begin_s > limit_s:
            results[position] = PlanTiming(failure=NO_TIME)
            continue
        send_message(position)
        try:
            runner = _prepare(request, position, compiled, samples, expected)
        except Exception as error:
            results[position] = PlanTiming(failure=in_short(error))
            continue
        if request.error_limit is not None and not runner.error <= request.error_limit:
            failure = f"its error {runner.error:.3g} exceeds {request.error_limit:.3g}"
            results[position] = PlanTiming(error=runner.error, failure=failure)
            continue
        runners.append(runner)
    runners.sort(key=lambda runner: runner.position)
    watch = CoreWatch(request.looks_us)
    near = _take_turns(request, runners, samples[0], watch)
    watch.close()
    counted = counting(near)
    far, left_out = counted != near, counted.count(False)
    for runner in runners:
        runner.executor.close()
        if len(runner.samples) > 1:  # who was called once only took no part in the rounds
            runner.keep(counted)
        steps = tuple(statistics.median(times) for times in zip(*runner.steps, strict=True))
        found = (tuple(runner.samples), steps, runner.error, None, left_out, far, tuple(watch.seen_us))
        results[runner.position] = PlanTiming(*found)
    compiled.close()
    return results


def _building_order(request: TimingRequest) -> list[int]:
    needed, others = (
        range(len(request.plans))[: request.needed],
        range(len(request.plans))[request.needed :],
    )
    return [*(reversed(needed) if request.backwards else needed), *others]


def _prepare(
    request: TimingRequest,
    position: int,
    compiled: CompiledRegions,
    samples: Sequence[Mapping[str, np.ndarray]],
    expected: Sequence[Mapping[str, Expected]],
) -> _Runner:
    plan = request.plans[position]
    steps = []
    for step in plan.steps:
        model = request.regions[step.region]
        steps.append(Step(compiled.get(step.region, model, step.target), model.inputs, model.outputs))
    runner = _Runner(position, Executor(steps, request.inputs, request.outputs, plan.lanes))
    stated = [step.executable.stated_latency_us for step in steps]
    runner.stated_us = tuple(us for us in stated if us is not None) if None not in stated else ()
    runner.executor.bind()
    for sample, wanted in zip(samples, expected, strict=True):
        runner.executor.feed(sample)
        runner.executor.run()
        made = runner.executor.results()
        names = list(wanted)
        error = output_error(request.metric, [made[n] for n in names], [wanted[n] for n in names])
        runner.error = max(runner.error, error)
    begin = time.perf_counter()
    runner.executor.run()
    once_s = max(time.perf_counter() - begin, 1e-7)
    runner.once_us = once_s * 1e6
    runner.calls = int(min(_MAX_CALLS, max(_MIN_CALLS, request.block_s / once_s)))
    return runner


def _take_turns(
    request: TimingRequest, runners: list[_Runner], sample: Mapping[str, np.ndarray], watch: CoreWatch
) -> list[bool]:
    """Time rounds; which of them had the cores near."""
    begin = time.perf_counter()
    racing = _in_the_race(request, runners)
    # What is near is known better with each round, so distances are kept.
    distances_us: list[float] = []
    near: list[bool] = []
    # Stated times do not depend on the cores.
    watched = any(not runner.stated_us for runner in racing)
    while racing and sum(near) < request.rounds:
        # What nobody can make up for in that time is not waited for.
        if len(near) >= request.rounds * (_MOST_ROUNDS if any(near) else 1):
            break
        if len(near) >= _MIN_ROUNDS and time.perf_counter() - begin > request.budget_s:
            break
        before_us = watch.settle() if watched else 0.0
        # Rotating the order spreads what one plan leaves behind in caches and thread pools.
        turn = len(near) % len(racing)
        for runner in racing[turn:] + racing[:turn]:
            send_message(runner.position)
            _time_block(runner, sample)
        distances_us.append(max(before_us, watch.measure()) if watched else 0.0)
        near = watch.are_near(distances_us)
        if request.prune and near[-1] and sum(near) >= _PRUNE_AFTER_ROUNDS:
            times = {r.position: list(compress(r.samples, near)) for r in racing}
            best = min(map(statistics.median, times.values()))
            # The first plan is the one that all ratios are taken to, so it stays.
            rest = [r for r in racing[1:] if min(times[r.position]) <= best * HOPELESS_RATIO]
            if len(rest) < len(racing) - 1:
                # Who leaves keeps what counted until now, whatever is seen later.
                distances_us = [0.0 if counts else math.inf for counts in near]
            racing = [racing[0], *rest]
    return near


def _in_the_race(request: TimingRequest, runners: list[_Runner]) -> list[_Runner]:
    """Who takes turns: the first, and who is not far behind; of the others their one call is the sample."""
    if not request.prune or not runners:
        return list(runners)
    limit_us = max(_SLOW_US, _FAR_BEHIND * min(runner.once_us for runner in runners))
    racing = []
    for runner in runners:
        if runner is runners[0] or runner.stated_us or runner.once_us <= limit_us:
            racing.append(runner)
        else:
            runner.samples.append(runner.once_us)
            runner.steps.append(runner.executor.run_timed())
    return racing


def _time_block(runner: _Runner, sample: Mapping[str, np.ndarray]) -> None:
    if runner.stated_us:
        runner.samples.append(sum(runner.stated_us))
        runner.steps.append(list(runner.stated_us))
        return
    executor = runner.executor
    executor.bind()
    executor.feed(sample)
    executor.run()
    times = []
    clock = time.perf_counter_ns
    for _ in range(runner.calls):
        begin = clock()
        executor.run()
        times.append((clock() - begin) / 1e3)
    runner.samples.append(statistics.median(times))
    runner.steps.append(executor.run_timed())

"""Times whole plans against each other: interleaved, in one child, as `load` runs them.

Terms: a *round* times one block of calls of every plan that still takes part. The first call of a block is
thrown away, and its median is kept. So sample *i* of every plan was taken within the same second, and ratios
are taken round by round. Rounds with the cores too far apart are left out, where there are others
(`collage.backends.machine.core_distance`). Blocks in which other processes took the cores are kept with that, and made
up for in the time that there is. Every plan is verified on every sample before it is timed.

Invariants: a plan that crashes the child is marked as failed, and the others start again without it.
A plan is dropped early only when it is slower than the best by more than noise explains, in rounds without disturbance.

Source: docs/measurement.md says why plans are timed so.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

import numpy as np

from collage.backends.machine.core_distance import CoreWatch, counting
from collage.backends.machine.load import QUIET_SHARE, LoadMeter, WaitMeter, cores, wait_for_quiet
from collage.backends.numerics.comparison import Expected
from collage.backends.numerics.tensor_files import read_expected, read_samples
from collage.backends.sandbox.run import send_message
from collage.runtime.compiled import CompiledRegions, CompileError, in_short
from collage.runtime.executor import Executor
from collage.runtime.step import Step
from collage.timing.request import (
    DISTURBED,
    FEWEST_CALLS,
    HOPELESS_RATIO,
    NO_TIME,
    PlanTiming,
    Refused,
    TimingRequest,
)

_MIN_ROUNDS = 3
# Of plans so slow that these rounds take longer than there is, one call is a block, and so many rounds do.
_SLOW_ROUNDS = 2
# Rounds that do not count are made up for, until there were so many times as many.
_MOST_ROUNDS = 1.5
_MAX_CALLS = 60
_COPIES = 7
_PRUNE_AFTER_ROUNDS = 4
# A plan whose call takes so long, and so many times as long as the fastest, is called only once: a layer without
# a fast kernel (ncnn's 3-D convolutions) would take minutes.
_SLOW_US, _FAR_BEHIND = 0.5e6, 10.0


@dataclass
class _BuiltPlan:
    """A compiled plan, and what was timed of it."""

    position: int
    executor: Executor
    stated_us: tuple[float, ...] = ()
    once_us: float = 0.0
    calls: int = 1
    samples: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    steps: list[list[float]] = field(default_factory=list)
    error: float = 0.0
    exactness: float = 0.0

    def keep(self, counted: Sequence[bool]) -> None:
        """Forget the other rounds."""
        self.samples = list(compress(self.samples, counted))
        self.waits = list(compress(self.waits, counted))
        self.steps = list(compress(self.steps, counted))


def run_rounds(request: TimingRequest, skip: list[int]) -> list[PlanTiming]:
    """Time the plans but those to skip; runs in the child."""
    compiled = CompiledRegions(request.threads, request.cache_dir)
    samples = read_samples(request.samples_file, request.inputs)
    expected = read_expected(request.expected_file, ())
    results = [PlanTiming(failure="not run") for _ in request.plans]
    built: list[_BuiltPlan] = []
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
            plan = _prepare(request, position, compiled, samples, expected)
        except Exception as error:
            is_final = isinstance(error, CompileError)
            results[position] = PlanTiming(failure=in_short(error), is_final=is_final)
            send_message(Refused(position, results[position]))
            continue
        if request.error_limit is not None and not plan.error <= request.error_limit:
            failure = f"its error {plan.error:.3g} exceeds {request.error_limit:.3g}"
            results[position] = PlanTiming(error=plan.error, failure=failure)
            send_message(Refused(position, results[position]))
            continue
        built.append(plan)
    built.sort(key=lambda plan: plan.position)
    watch = CoreWatch(request.seen_us)
    quiet_s = wait_for_quiet(request.patience_s)
    load = LoadMeter()
    near = _take_turns(request, built, samples[0], watch, load)
    others = load.others()
    watch.close()
    counted = counting(near)
    far, left_out = counted != near, counted.count(False)
    for plan in built:
        copies = plan.executor.time_copies(_COPIES)
        plan.executor.close()
        if len(plan.samples) > 1:  # a plan that was called once took no part in the rounds
            plan.keep(counted)
        results[plan.position] = PlanTiming(
            samples_us=tuple(plan.samples),
            waits=tuple(plan.waits),
            step_us=tuple(statistics.median(times) for times in zip(*plan.steps, strict=True)),
            error=plan.error,
            exactness=plan.exactness,
            left_out=left_out,
            far=far,
            seen_us=tuple(watch.seen_us),
            others=others,
            quiet_s=quiet_s,
            copy_us=tuple((name, reader, us) for (name, reader), us in copies.items()),
        )
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
) -> _BuiltPlan:
    asked = request.plans[position]
    steps = []
    for step in asked.steps:
        model = request.regions[step.region]
        executable = compiled.get(step.region, model, step.target)
        steps.append(Step(executable, step.inputs or model.inputs, step.outputs or model.outputs))
    plan = _BuiltPlan(position, Executor(steps, request.inputs, request.outputs, asked.lanes))
    stated = [step.executable.stated_latency_us for step in steps]
    plan.stated_us = tuple(us for us in stated if us is not None) if None not in stated else ()
    plan.executor.bind()
    for sample, wanted in zip(samples, expected, strict=True):
        plan.executor.feed(sample)
        plan.executor.run()
        made = plan.executor.results()
        plan.error = max(plan.error, request.error(made, wanted))
        plan.exactness = (
            plan.error
            if request.metric == "max"
            else max(plan.exactness, replace(request, metric="max").error(made, wanted))
        )
    begin = time.perf_counter()
    plan.executor.run()
    once_s = max(time.perf_counter() - begin, 1e-7)
    plan.once_us = once_s * 1e6
    plan.calls = int(min(_MAX_CALLS, max(FEWEST_CALLS, request.block_s / once_s)))
    return plan


def _take_turns(
    request: TimingRequest,
    built: list[_BuiltPlan],
    sample: Mapping[str, np.ndarray],
    watch: CoreWatch,
    load: LoadMeter,
) -> list[bool]:
    """Time rounds; which of them had the cores near."""
    begin = time.perf_counter()
    active = _taking_part(request, built)
    fewest = _SLOW_ROUNDS if _call_once(request, active) else _MIN_ROUNDS
    # What is near is known better with each round, so distances are kept.
    distances_us: list[float] = []
    near: list[bool] = []
    # Stated times do not depend on the cores.
    watched = any(not plan.stated_us for plan in active)
    while active and (sum(near) < request.rounds or _is_disturbed(active, request.rounds, load)):
        # Rounds that cannot be made up for in that time are not waited for.
        if len(near) >= request.rounds * (_MOST_ROUNDS if any(near) else 1):
            break
        if len(near) >= fewest and time.perf_counter() - begin > request.budget_s:
            break
        before_us = watch.settle() if watched else 0.0
        # Rotating the order spreads what one plan leaves behind in caches and thread pools.
        turn = len(near) % len(active)
        for plan in active[turn:] + active[:turn]:
            send_message(plan.position)
            _time_block(plan, sample)
        distances_us.append(max(before_us, watch.measure()) if watched else 0.0)
        near = watch.are_near(distances_us)
        if request.prune and near[-1]:
            hopeful = _hopeful(active, near, request.sure_error)
            if len(hopeful) < len(active):
                # A plan that leaves keeps what counted until now, whatever is seen later.
                distances_us = [0.0 if counts else math.inf for counts in near]
            active = hopeful
    return near


def _hopeful(active: Sequence[_BuiltPlan], near: Sequence[bool], sure_error: float) -> list[_BuiltPlan]:
    """The plans that may still win beside those that may be returned, and the first, to which all ratios are taken.

    Only blocks count that nothing disturbed: another process may take the cores for many rounds.
    """
    quiet: dict[int, list[float]] = {}
    for plan in active:
        blocks = zip(plan.samples, plan.waits, near, strict=True)
        quiet[plan.position] = [us for us, wait, counts in blocks if counts and wait <= DISTURBED]
    known = {position: us for position, us in quiet.items() if len(us) >= _PRUNE_AFTER_ROUNDS}
    sure = [known[p.position] for p in active if p.position in known and p.exactness <= sure_error]
    limit_us = HOPELESS_RATIO * min(map(statistics.median, sure), default=math.inf)
    hopeless = {position for position, us in known.items() if min(us) > limit_us}
    return [active[0], *(plan for plan in active[1:] if plan.position not in hopeless)]


def _is_disturbed(active: Sequence[_BuiltPlan], enough: int, load: LoadMeter) -> bool:
    """Whether others use the cores, and a plan has too few blocks without disturbance."""
    fewest = min(sum(wait <= DISTURBED for wait in plan.waits) for plan in active)
    return fewest < enough and load.others() > QUIET_SHARE * len(cores())


def _taking_part(request: TimingRequest, built: list[_BuiltPlan]) -> list[_BuiltPlan]:
    """The plans that are called in turn: the first, and those not far behind. The one call of each other is its sample."""
    if not request.prune or not built:
        return list(built)
    sure_us = (plan.once_us for plan in built if plan.exactness <= request.sure_error)
    limit_us = max(_SLOW_US, _FAR_BEHIND * min(sure_us, default=math.inf))
    active = []
    for plan in built:
        if plan is built[0] or plan.stated_us or plan.once_us <= limit_us:
            active.append(plan)
        else:
            plan.samples.append(plan.once_us)
            plan.waits.append(0.0)
            plan.steps.append(plan.executor.run_timed())
    return active


def _call_once(request: TimingRequest, active: Sequence[_BuiltPlan]) -> bool:
    """Make blocks of single calls where the fewest rounds of longer ones would take longer than there is."""
    blocks_s = sum((plan.calls + 2) * plan.once_us / 1e6 for plan in active if not plan.stated_us)
    if _MIN_ROUNDS * blocks_s <= request.budget_s:
        return False
    for plan in active:
        plan.calls = min(plan.calls, 1 if plan.once_us >= request.block_s * 1e6 else plan.calls)
    return True


def _time_block(plan: _BuiltPlan, sample: Mapping[str, np.ndarray]) -> None:
    if plan.stated_us:
        plan.samples.append(sum(plan.stated_us))
        plan.waits.append(0.0)
        plan.steps.append(list(plan.stated_us))
        return
    executor = plan.executor
    executor.bind()
    executor.feed(sample)
    clock = time.perf_counter_ns
    if plan.calls == 1:
        # A call that takes long hides what a first call costs more, and what the clock costs between steps.
        waits = WaitMeter()
        begin = clock()
        plan.steps.append(executor.run_timed())
        plan.samples.append((clock() - begin) / 1e3)
        plan.waits.append(waits.lap())
        return
    executor.run()
    times = []
    waits = WaitMeter()
    for _ in range(plan.calls):
        begin = clock()
        executor.run()
        times.append((clock() - begin) / 1e3)
    plan.waits.append(waits.lap())
    plan.samples.append(statistics.median(times))
    plan.steps.append(executor.run_timed())

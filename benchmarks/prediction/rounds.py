"""Runs plans and their parts in rounds, so that prediction and measurement are of one moment.

The machine's speed changes within seconds by more than the differences in question. So each plan is
followed at once by all of its parts alone, in every way of measuring them, and only these are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.prediction.plans import Part
from collage.backends.contract import Executable, SubModel
from collage.backends.measurement.buffers import aligned
from collage.backends.measurement.protocol import Protocol
from collage.backends.measurement.timing import preparation
from collage.backends.numerics.tensor_files import read_samples
from collage.backends.sandbox.run import send_message
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.compiled import CompiledRegions
from collage.runtime.executor import Executor
from collage.runtime.step import Step

_LEAST_ROUNDS, _MOST_ROUNDS = 5, 40
# Of a plan in its turn, and of a part in its own; medians of them count.
_PLAN_CALLS, _PLAN_S, _PART_CALLS = 3, 0.02, 3


@dataclass(frozen=True)
class Way:
    """One way of measuring parts: how much memory is walked through before each call, by how many threads."""

    evict_bytes: int
    threads: int


@dataclass(frozen=True)
class Rounds:
    """The plans to run.

    Args:
        plans: partitions in order, by the names of their regions and their targets.
        regions: sub-models by name; the values they see lie beside each as `inputs.npz`.
        inputs: the graph's inputs.
        outputs: the graph's outputs that parts make.
        samples_file: values of the graph's inputs.
        ways: of measuring parts, by name.
        threads: of one call.
        cache_dir: where what was converted or compiled once is kept.
        budget_s: no round begins after this time; five are always made.
    """

    plans: Sequence[Sequence[Part]]
    regions: Mapping[str, SubModel]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    samples_file: Path
    ways: Mapping[str, Way]
    threads: int
    cache_dir: Path
    budget_s: float


@dataclass(frozen=True)
class Found:
    """What came out, in microseconds.

    Args:
        plans_us: by plan, one for each round.
        promised_us: by way and plan, the sum of the plan's parts right after it, one for each round.
        parts_us: by way and part (`part_name`), the median of all times.
    """

    plans_us: list[list[float]]
    promised_us: dict[str, list[list[float]]]
    parts_us: dict[str, dict[str, float]]


def part_name(part: Part) -> str:
    """How results call a part."""
    start, end, target = part
    return f"{start}-{end} {target}"


def run_rounds(request: Rounds) -> Found:
    """Run the plans and their parts in rounds (in a child); sends a message for each round."""
    compiled = CompiledRegions(request.threads, request.cache_dir)

    def made(part: Part) -> tuple[Executable, SubModel]:
        start, end, target = part
        model = request.regions[f"{start}-{end}"]
        return compiled.get(f"{start}-{end}", model, Target.parse(target)), model

    (sample,) = read_samples(request.samples_file, request.inputs)
    plans = []
    for plan in request.plans:
        steps = [Step(ready, model.inputs, model.outputs) for ready, model in map(made, plan)]
        plans.append(Executor(steps, request.inputs, request.outputs))
    parts = {
        part_name(part): _Alone(*made(part), request.ways)
        for part in sorted({part for plan in request.plans for part in plan})
    }
    found = Found(
        [[] for _ in plans],
        {way: [[] for _ in plans] for way in request.ways},
        {way: {} for way in request.ways},
    )
    times: dict[tuple[str, str], list[float]] = {
        (way, name): [] for way in request.ways for name in parts
    }
    begin = time.monotonic()
    for number in range(_MOST_ROUNDS):
        if number >= _LEAST_ROUNDS and time.monotonic() - begin > request.budget_s:
            break
        send_message(number)
        for position, (plan, executor) in enumerate(zip(request.plans, plans, strict=True)):
            found.plans_us[position].append(_time_plan(executor, sample))
            # No way is always the first after the plan.
            turn = (number + position) % len(request.ways)
            ways = list(request.ways)
            for way in ways[turn:] + ways[:turn]:
                alone = [parts[part_name(part)].time(way) for part in plan]
                found.promised_us[way][position].append(round(sum(alone), 1))
                for part, us in zip(plan, alone, strict=True):
                    times[way, part_name(part)].append(us)
    for (way, name), samples in times.items():
        found.parts_us[way][name] = statistics.median(samples)
    for executor in plans:
        executor.close()
    compiled.close()
    return found


def _time_plan(executor: Executor, sample: Mapping[str, np.ndarray]) -> float:
    executor.bind()
    executor.feed(sample)
    executor.run()
    return _median_us(executor.run, None, _PLAN_CALLS, _PLAN_S)


class _Alone:
    """One part, on buffers of its own."""

    def __init__(self, executable: Executable, model: SubModel, ways: Mapping[str, Way]) -> None:
        (sample,) = read_samples(model.path.parent / "inputs.npz", model.inputs)
        values = [sample[s.name] for s in model.inputs]
        self._executable = executable
        self._inputs = [aligned(s.static_shape, np.dtype(s.dtype)) for s in model.inputs]
        self._outputs = [aligned(s.static_shape, np.dtype(s.dtype)) for s in model.outputs]
        for buffer, value in zip(self._inputs, values, strict=True):
            np.copyto(buffer, value)
        self._prepared = {
            name: preparation(Protocol(way.evict_bytes), self._inputs, values, way.threads)
            for name, way in ways.items()
        }

    def time(self, way: str) -> float:
        """The median of a few calls, in microseconds; plans use the same executables, so it is bound anew."""
        self._executable.bind(self._inputs, self._outputs)
        self._executable.run()
        return _median_us(self._executable.run, self._prepared[way], _PART_CALLS, 0.0)


def _median_us(
    run: Callable[[], None], prepare: Callable[[], None] | None, calls: int, least_s: float
) -> float:
    clock = time.perf_counter_ns
    times: list[float] = []
    while len(times) < calls or sum(times) < least_s * 1e6:
        if prepare is not None:
            prepare()
        begin = clock()
        run()
        times.append((clock() - begin) / 1e3)
    return round(statistics.median(times), 1)

"""Which blocks of a model may be computed less exactly, found by running the model so.

Terms: an *exact* target keeps the tolerance on the whole model with room to spare; a *reduced* one (bf16,
int8, …) is faster and does not. The model is cut into *blocks*, runs of nodes between cut points. A *mix* is a
set of blocks on the reduced target, the rest on the exact one; its error is that of the model's outputs.

Errors of blocks do not add up: they cancel, saturate and pass through each other (see docs/accuracy.md), so no
sum is trusted. Every block is compiled once for both targets in one child, and a mix is judged by running
it, which costs one inference. The choice is greedy from both ends: from everything reduced, the block
whose return to exactness buys the most error for its time goes first; from the best mix found, blocks
that still fit are taken in again. Prefixes and suffixes are tried too.

Invariant: nothing here decides that a plan keeps the tolerance: it proposes, and the contest of whole
plans, on more samples than were used here, disposes.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from backends.contract import SubModel
from backends.samples import read_samples
from backends.verify import output_error
from collage.compiled import CompiledRegions
from collage.executor import Executor, Step
from partitioner.errors import CollageError
from partitioner.graph_index import GraphIndex
from partitioner.linear_order import line
from partitioner.target import Target
from partitioner.tensor import TensorSpec

_TIMED, _TIMED_RUNS = 12, 7


@dataclass(frozen=True)
class Probe:
    """What to try in the child.

    Args:
        blocks: in execution order.
        gains_us: per block what the reduced target saves.
        exact: target of the rest.
        reduced: the faster target.
        inputs: the graph's inputs.
        samples_file: inputs of every sample.
        expected_file: reference outputs for each.
        used_samples: how many of them to use; the others are held out.
        metric: how an output's error is measured.
        goals: errors to stay below, one answer for each.
        threads: of one call.
        budget_s: time for trying mixes.
        cache_dir: where what was converted or compiled once is kept; None for nowhere.
    """

    blocks: tuple[SubModel, ...]
    gains_us: tuple[float, ...]
    exact: Target
    reduced: Target
    inputs: tuple[TensorSpec, ...]
    samples_file: Path
    expected_file: Path
    used_samples: int
    metric: str
    goals: tuple[float, ...]
    threads: int
    budget_s: float = 25.0
    cache_dir: Path | None = None


@dataclass(frozen=True)
class Mix:
    """A mix.

    Args:
        blocks: those on the reduced target (bitset).
        error: of the model's outputs.
        latency_us: a quick measurement, to rank by; None where it was not worth one.
    """

    blocks: int
    error: float
    latency_us: float | None = None


@dataclass(frozen=True)
class ProbeResult:
    """What came out.

    Args:
        best: per goal the mixes that keep it, the fastest first; empty where none does.
        tried: every mix that was run.
    """

    best: tuple[tuple[Mix, ...], ...]
    tried: tuple[Mix, ...]


def cut_into_blocks(index: GraphIndex, time_us: Mapping[int, float], count: int) -> list[int]:
    """Runs of nodes (bitsets) between cut points, of about equal time, in execution order."""
    laid = line(index, index.all_nodes)
    spent = [0.0]
    for node in laid.order:
        spent.append(spent[-1] + time_us.get(node, 0.0))
    cuts = [0]
    for number in range(1, count):
        wanted = spent[-1] * number / count
        nearest = min(laid.cuts, key=lambda position: abs(spent[position] - wanted))
        if nearest > cuts[-1] and nearest < len(laid.order):
            cuts.append(nearest)
    cuts.append(len(laid.order))
    return [laid.run(start, end) for start, end in itertools.pairwise(cuts)]


def probe(request: Probe) -> ProbeResult:
    """Try mixes until each goal has an answer or the time is up; runs in a child."""
    compiled = CompiledRegions(request.threads, request.cache_dir)
    steps: list[tuple[Step, ...]] = []
    for i, model in enumerate(request.blocks):
        exact = Step(compiled.get(f"{i}", model, request.exact), model.inputs, model.outputs)
        try:
            executable = compiled.get(f"{i}", model, request.reduced)
            steps.append((exact, Step(executable, model.inputs, model.outputs)))
        except CollageError:
            steps.append((exact,))  # the reduced target refuses this block, so it stays exact
    found = _Trials(request, steps).go()
    compiled.close()
    return found


@dataclass
class _Trials:
    request: Probe
    steps: Sequence[tuple[Step, ...]]
    errors: dict[int, float] = field(default_factory=dict)
    latencies_us: dict[int, float] = field(default_factory=dict)

    def go(self) -> ProbeResult:
        request = self.request
        self.deadline_s = time.monotonic() + request.budget_s
        self.samples = read_samples(request.samples_file, request.inputs)[: request.used_samples]
        self.expected = read_samples(request.expected_file, ())[: request.used_samples]
        count = len(self.steps)
        self.reducible = sum(1 << i for i, pair in enumerate(self.steps) if len(pair) == 2)
        everything = self.reducible
        self.error(everything)
        for i in range(count):
            self.error(everything & 1 << i)
            self.error(everything >> i << i)
            self.error(everything & (1 << i) - 1)
        for goal in sorted(request.goals, reverse=True):
            self.descend(everything, goal)
            self.grow(goal)
        tried = [Mix(mask, error) for mask, error in self.errors.items()]
        best = tuple(self.ranked(self.keeping(goal)) for goal in request.goals)
        return ProbeResult(best, tuple(tried))

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() > self.deadline_s

    def gain_us(self, mask: int) -> float:
        return sum(gain for i, gain in enumerate(self.request.gains_us) if mask >> i & 1)

    def ranked(self, mixes: Sequence[Mix]) -> tuple[Mix, ...]:
        """The most promising mixes by measured time: gains do not know what borders cost."""
        timed = []
        for mix in mixes[:_TIMED]:
            if mix.blocks not in self.latencies_us:
                self.latencies_us[mix.blocks] = self.time_us(mix.blocks)
            timed.append(replace(mix, latency_us=self.latencies_us[mix.blocks]))
        return tuple(sorted(timed, key=lambda mix: mix.latency_us or 0.0))

    def time_us(self, mask: int) -> float:
        executor = self.executor(mask)
        executor.feed(self.samples[0])
        executor.run()
        times = []
        for _ in range(_TIMED_RUNS):
            begin = time.perf_counter()
            executor.run()
            times.append((time.perf_counter() - begin) * 1e6)
        return statistics.median(times)

    def executor(self, mask: int) -> Executor:
        steps = [pair[mask >> i & 1] for i, pair in enumerate(self.steps)]
        executor = Executor(steps, self.request.inputs, list(self.expected[0]))
        executor.bind()
        return executor

    def keeping(self, goal: float) -> tuple[Mix, ...]:
        kept = [Mix(mask, error) for mask, error in self.errors.items() if mask and error <= goal]
        return tuple(sorted(kept, key=lambda mix: (-self.gain_us(mix.blocks), mix.error)))

    def descend(self, mask: int, goal: float) -> None:
        """Give blocks back to the exact target, the best bargain first, until the goal is kept."""
        while mask and self.error(mask) > goal and not self.out_of_time:
            now = self.error(mask)
            bargains = {}
            for i in range(len(self.steps)):
                if mask >> i & 1:
                    less = mask & ~(1 << i)
                    price = max(self.request.gains_us[i], 1.0)
                    bargains[less] = (now - self.error(less)) / price
                    if self.out_of_time:
                        break
            mask = max(bargains, key=lambda less: bargains[less])

    def grow(self, goal: float) -> None:
        """From the best mix that keeps the goal, take in further blocks while it is kept."""
        kept = self.keeping(goal)
        mask = kept[0].blocks if kept else 0
        usable = [i for i in range(len(self.steps)) if self.reducible >> i & 1]
        for i in sorted(usable, key=lambda i: -self.request.gains_us[i]):
            if self.out_of_time:
                return
            more = mask | 1 << i
            if more != mask and self.request.gains_us[i] > 0 and self.error(more) <= goal:
                mask = more

    def error(self, mask: int) -> float:
        if mask not in self.errors:
            executor = self.executor(mask)
            worst = 0.0
            for sample, wanted in zip(self.samples, self.expected, strict=True):
                executor.feed(sample)
                executor.run()
                made = executor.results()
                names = list(wanted)
                actual = [made[name] for name in names]
                error = output_error(self.request.metric, actual, [wanted[name] for name in names])
                worst = max(worst, error)
            self.errors[mask] = worst
        return self.errors[mask]

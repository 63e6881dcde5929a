"""Do runtimes slow each other down when they are called in turn in one process?

    python -m benchmarks.coexistence [-t TARGET ...] [--placement free|apart] [--json FILE]

For each ordered pair (first, second) and three kernel sizes, the ratio of two latencies of the second:
in turn with the first, and in turn with a *twin*. A twin is another session of the same runtime on the
same model. A ratio of 1.00 means that another runtime disturbs no more than the runtime itself. The
diagonal is the ratio of the time in turn with the twin over the time of one session called again and
again.

Blocks are interleaved, in several processes of each pair, since builds differ. Rounds with the cores
far apart (`collage.backends.machine.core_distance`) are left out. A kernel is two 3×3 convolutions,
each with a Relu. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.coexistence.kernels import CHANNELS, kernel
from collage.backends.contract import Available, CompileContext, SubModel
from collage.backends.machine import process_policy
from collage.backends.machine.core_distance import CoreWatch, counting
from collage.backends.machine.hardware import hardware
from collage.backends.measurement.buffers import aligned
from collage.backends.measurement.ratio import compare_builds
from collage.backends.registry import resolve
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.partitioner.errors import TargetError
from collage.partitioner.target import Target

SIDES = (12, 28, 56)
GOAL = 1.05
GOAL_FROM_US = 200.0
_BLOCK_S = 0.06
_PATIENCE_S = 20.0
_TIMEOUT_S = 300


@dataclass(frozen=True)
class Turns:
    """What one process saw of the second target right after the first, block by block.

    Args:
        base_us: the second's time in turn with its twin; for a target after itself, its time alone.
        after_us: its time after the first.
    """

    first: str
    second: str
    base_us: tuple[float, ...]
    after_us: tuple[float, ...]


@dataclass(frozen=True)
class Pair:
    """How the second target fares right after the first.

    Args:
        base_us: the second's time in turn with its twin; for a target after itself, its time alone.
        ratio, low, high: its time after the first over that, with the 95 % interval over processes.
    """

    first: str
    second: str
    side: int
    base_us: float
    ratio: float
    low: float
    high: float


def judge(side: int, seen: Sequence[Turns]) -> Pair:
    """The result of all processes of an ordered pair."""
    found = compare_builds([(turns.after_us, turns.base_us) for turns in seen])
    base_us = statistics.median(us for turns in seen for us in turns.base_us)
    first, second = seen[0].first, seen[0].second
    return Pair(first, second, side, base_us, found.ratio, found.low, found.high)


def alternate(
    first: str, second: str, side: int, threads: int, rounds: int, placement: str
) -> list[Turns]:
    """Both orders of two targets (or a target and its twin) at one size. Runs in a child."""
    model = kernel(side, Path("kernel.onnx").absolute())
    names = (first, second)
    runners = [_ready(name, model, threads, placement) for name in names]
    twins = [_ready(name, model, threads, placement) for name in names if first != second]
    bases = list(zip(runners, twins, strict=True)) if twins else [(runner,) for runner in runners]
    base: list[list[float]] = [[], []]
    turns: list[list[float]] = [[], []]
    watch = CoreWatch(patience_s=_PATIENCE_S)
    distances_us = []
    for _ in range(rounds):
        before_us = watch.settle()
        for i in (0, 1):
            base[i].append(_block(bases[i])[0])
        for i, time_us in enumerate(_block(runners)):
            turns[i].append(time_us)
        distances_us.append(max(before_us, watch.measure()))
    watch.close()
    counted = counting(watch.are_near(distances_us))
    both = [
        Turns(
            names[1 - i],
            names[i],
            tuple(itertools.compress(base[i], counted)),
            tuple(itertools.compress(turns[i], counted)),
        )
        for i in (0, 1)
    ]
    return both if first != second else both[:1]


def _ready(name: str, model: SubModel, threads: int, placement: str) -> Callable[[], None]:
    folder = Path(tempfile.mkdtemp())  # inside the child's own folder
    target = Target.parse(name)
    threads_before = _native_threads()
    with process_policy.caller_kept():
        executable = resolve(target).compile(model, target, CompileContext(threads, folder))
    x = aligned(model.inputs[0].static_shape, np.dtype(np.float32))
    x[...] = np.random.default_rng(1).standard_normal(x.shape, dtype=np.float32)
    executable.bind([x], [aligned(model.outputs[0].static_shape, np.dtype(np.float32))])
    for _ in range(5):
        executable.run()
    cores = os.sched_getaffinity(0)
    if placement == "free" or len(cores) < 2:
        return executable.run
    home = {min(cores)}
    for thread in _native_threads() - threads_before:
        os.sched_setaffinity(thread, cores - home)

    def run_at_home() -> None:
        os.sched_setaffinity(0, home)
        executable.run()
        os.sched_setaffinity(0, cores)

    return run_at_home


def _native_threads() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}


def _block(runners: Sequence[Callable[[], None]]) -> list[float]:
    """Median time of each runner in a block of turns; the first turn is thrown away."""
    times: list[list[float]] = [[] for _ in runners]
    clock = time.perf_counter_ns
    for runner in runners:
        runner()
    begin = clock()
    while (clock() - begin) / 1e9 < _BLOCK_S * len(runners) or len(times[0]) < 3:
        for runner, kept in zip(runners, times, strict=True):
            start = clock()
            runner()
            kept.append((clock() - start) / 1e3)
    return [statistics.median(kept) for kept in times]


def usable(names: Sequence[str]) -> list[str]:
    """Those targets that this machine has."""
    found = []
    for name in names:
        try:
            resolve(Target.parse(name))
        except TargetError as error:
            print(f"left out: {error}")
        else:
            found.append(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-t", "--target", action="append")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=process_policy.default_threads())
    parser.add_argument("--placement", choices=("free", "apart"), default="free")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = usable(options.target or ["onnxruntime", "openvino", "mnn", "ncnn"])
    pairs: list[Pair] = []
    failures: list[str] = []
    for side in SIDES:
        for first, second in itertools.combinations_with_replacement(names, 2):
            processes: list[list[Turns]] = []
            for _ in range(options.processes):
                try:
                    limits = ChildLimits(timeout_s=_TIMEOUT_S)
                    turns = run_in_child(
                        alternate,
                        first,
                        second,
                        side,
                        options.threads,
                        options.rounds,
                        options.placement,
                        limits=limits,
                    )
                    processes.append(turns)
                except ChildFailed as failure:
                    failures.append(f"{first} and {second}, {side}×{side}: {failure}")
            pairs += [judge(side, seen) for seen in zip(*processes, strict=True)]
    print(table(pairs, names))
    for text in failures:
        print(f"failed: {text}")
    if options.json is not None:
        result = {
            "hardware": hardware().describe(),
            "versions": versions(names),
            "threads": options.threads,
            "processes": options.processes,
            "placement": options.placement,
            "pairs": [asdict(pair) for pair in pairs],
            "failures": failures,
        }
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


def versions(names: Sequence[str]) -> dict[str, str]:
    """Version of each runtime used."""
    found = {}
    for name in names:
        backend = resolve(Target.parse(name))
        state = backend.probe()
        if isinstance(state, Available):
            found[backend.name] = state.version
    return found


def table(pairs: Sequence[Pair], names: Sequence[str]) -> str:
    """Markdown: a row for each target that ran before, a column for each that is timed; bold above the goal."""
    lines = []
    for side in SIDES:
        here = {(p.first, p.second): p for p in pairs if p.side == side}
        alone = {p.second: p.base_us for p in here.values() if p.first == p.second}
        heads = [f"{name} ({alone[name]:.0f} µs)" if name in alone else name for name in names]
        lines += [f"\n{side} × {side} × {CHANNELS} (time alone); rows: what ran before.\n"]
        lines += ["| after | " + " | ".join(heads) + " |", "|---" * (len(names) + 1) + "|"]
        for first in names:
            cells = [_cell(here.get((first, second))) for second in names]
            lines.append(f"| {first} | " + " | ".join(cells) + " |")
    large = [p for p in pairs if p.base_us >= GOAL_FROM_US and p.first != p.second]
    met = sum(p.low <= GOAL for p in large)
    lines.append(
        f"\n{met} of {len(large)} ordered pairs over {GOAL_FROM_US:.0f} µs are not above {GOAL} "
        "(lower end of the interval)."
    )
    return "\n".join(lines)


def _cell(pair: Pair | None) -> str:
    if pair is None:
        return "–"
    text = f"{pair.ratio:.2f} [{pair.low:.2f}, {pair.high:.2f}]"
    if pair.first == pair.second:
        return f"*{text}*"
    return f"**{text}**" if pair.low > GOAL and pair.base_us >= GOAL_FROM_US else text

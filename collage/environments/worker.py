"""The process of one environment: compiles plans, and times a block of calls when it is told to.

It reads a line of JSON from stdin for each order, and answers with one on the file that it is given, since
runtimes print what they like to stdout:

    {"do": "describe"}                                   versions
    {"do": "compile", "work": {...}, "number": 0}        compiles a plan and compares its outputs
    {"do": "time", "number": 0, "block_s": 0.06}         the median of a block of calls, and each step's time
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, TypeVar

from collage.backends.contract import Available
from collage.backends.machine.load import WaitMeter
from collage.backends.machine.process_policy import apply_environment
from collage.backends.numerics.comparison import output_error
from collage.backends.numerics.tensor_files import read_expected, read_samples
from collage.backends.registry import backends, for_tests
from collage.environments.work import PROTOCOL, Work, work_from_json
from collage.partitioner.target import Target
from collage.runtime.compiled import CompiledRegions, in_short
from collage.runtime.executor import Executor
from collage.runtime.step import Step

_MIN_CALLS, _MAX_CALLS = 3, 400
_STEP_RUNS = 5
# A run is undisturbed where its threads waited for such a share of it at most; so many of these are enough.
_QUIET, _ENOUGH = 0.02, 5
_MOST_TIMES = 3

Found = TypeVar("Found")


class Worker:
    """The plans of one process.

    Args:
        threads: of one call.
        metric: how errors are measured.
        counted: whether differences are counted, since somebody else judges results.
    """

    def __init__(self, threads: int, metric: str, counted: bool) -> None:
        self._compiled = CompiledRegions(threads)
        self._metric, self._counted = metric, counted
        self._plans: dict[int, tuple[Executor, Mapping[str, Any], int]] = {}

    def do(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out an order; a failure is an answer."""
        try:
            if order["do"] == "compile":
                return self._compile(order["number"], work_from_json(order["work"]))
            return self._time(order["number"], order["block_s"])
        except Exception as error:  # whatever a runtime raises
            return {"failure": in_short(error)}

    def _compile(self, number: int, work: Work) -> dict[str, Any]:
        steps = []
        for position, step in enumerate(work.steps):
            target = Target.parse(step.target)
            executable = self._compiled.get(f"{number}.{position}", step.model, target)
            steps.append(Step(executable, step.model.inputs, step.model.outputs))
        executor = Executor(steps, work.inputs, work.outputs, work.lanes)
        executor.bind()
        error = 0.0
        samples = read_samples(work.samples, work.inputs)
        for sample, wanted in zip(samples, read_expected(work.expected, ()), strict=True):
            executor.feed(sample)
            executor.run()
            made = executor.results()
            names = list(wanted)
            actual, expected = [made[n] for n in names], [wanted[n] for n in names]
            found = output_error(self._metric, actual, expected, self._counted)
            error = found if not found <= error else error
        executor.feed(samples[0])
        executor.run()
        begin = time.perf_counter()
        executor.run()
        once_us = (time.perf_counter() - begin) * 1e6
        self._plans[number] = (executor, samples[0], max(1, int(once_us)))
        return {"error": error if error < float("inf") else None, "wrong": not error < float("inf")}

    def _time(self, number: int, block_s: float) -> dict[str, Any]:
        executor, sample, once_us = self._plans[number]
        executor.bind()
        executor.feed(sample)
        executor.run()
        clock = time.perf_counter_ns

        def call_us() -> float:
            begin = clock()
            executor.run()
            return (clock() - begin) / 1e3

        calls = int(min(_MAX_CALLS, max(_MIN_CALLS, block_s * 1e6 / once_us)))
        times, steps = undisturbed(call_us, calls), undisturbed(executor.run_timed, _STEP_RUNS)
        return {
            "us": statistics.median(times),
            "step_us": [statistics.median(own) for own in zip(*steps, strict=True)],
        }


def undisturbed(run: Callable[[], Found], runs: int) -> list[Found]:
    """What runs found in which no thread waited long for a core; of a busy machine, the ones that waited least.

    Args:
        run: runs once.
        runs: how many are wanted. Where too few were undisturbed, up to three times as many are made.
    """
    enough = min(runs, _ENOUGH)
    found: list[tuple[float, Found]] = []
    meter = WaitMeter()
    while len(found) < runs or (
        sum(waited <= _QUIET for waited, _ in found) < enough and len(found) < _MOST_TIMES * runs
    ):
        meter.lap()
        result = run()
        found.append((meter.lap(), result))
    limit = max(_QUIET, sorted(waited for waited, _ in found)[enough - 1])
    return [result for waited, result in found if waited <= limit]


def describe() -> dict[str, Any]:
    """Versions of this environment's runtimes, Python and collage."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name, backend in backends().items():
        probed = backend.probe() if not for_tests(name) else None
        if isinstance(probed, Available):
            found[name] = probed.version
    try:
        found["collage"] = version("collage-tuner")
    except PackageNotFoundError:
        found["collage"] = "not installed"
    found["python"] = platform.python_version()
    return {"protocol": PROTOCOL, "versions": found}


def serve(orders: IO[str], answers: IO[str]) -> None:
    """Answer every order until there are no more."""
    worker: Worker | None = None
    for line in orders:
        order = json.loads(line)
        if order["do"] == "describe":
            answer = describe()
        elif order["do"] == "start":
            worker = Worker(order["threads"], order["metric"], order.get("counted", False))
            answer = {}
        else:
            assert worker is not None
            answer = worker.do(order)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Serve on stdin and the file descriptor that is given."""
    apply_environment()
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as answers:
        serve(sys.stdin, answers)


if __name__ == "__main__":
    main()

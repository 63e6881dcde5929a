"""Times entries of several environments in turn: the part that runs in a sandboxed child, and its owner.

Each environment has a process of its own, and only one of them computes at a time. The order of entries is
turned round from one round to the next, so that neither always follows the other.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from collage.backends.measurement.ratio import Ratio, compare_builds
from collage.backends.measurement.timing import yardstick_us
from collage.backends.sandbox.run import ChildFailed, ChildLimits
from collage.environments.processes import WorkerError, WorkerProcess
from collage.environments.work import BuildRequest, BuildResult, Built, work_as_json
from collage.partitioner.errors import CollageError
from collage.runner import Runner

_KILLED_RETRIES = 2


class TimingError(CollageError):
    """Builds failed for reasons that no entry has; the message says why."""


@dataclass
class _Running:
    """An entry while it is timed."""

    error: float | None = None
    failure: str | None = None
    samples_us: list[float] = field(default_factory=list)
    step_us: list[tuple[float, ...]] = field(default_factory=list)

    @property
    def built(self) -> Built:
        return Built(tuple(self.samples_us), tuple(self.step_us), self.error, self.failure)


def run_build(request: BuildRequest) -> BuildResult:
    """Compile and time all entries once; runs in the child."""
    folder = Path(tempfile.mkdtemp())
    states = [_Running() for _ in request.entries]
    processes: dict[int, WorkerProcess] = {}
    with contextlib.ExitStack() as owned:
        for number, environment in enumerate(request.environments):
            process = WorkerProcess(environment, folder, request.timeout_s)
            processes[number] = owned.enter_context(process)
        start = {
            "do": "start",
            "threads": request.threads,
            "metric": request.metric,
            "counted": request.counted,
        }
        for number, process in processes.items():
            _ask(
                process,
                start,
                [s for s, e in zip(states, request.entries, strict=True) if e.environment == number],
            )
        for number, (entry, state) in enumerate(zip(request.entries, states, strict=True)):
            work = work_as_json(request.works[entry.work])
            order = {"do": "compile", "number": number, "work": work}
            answer = _ask(processes[entry.environment], order, [state])
            state.error = answer.get("error")
            if answer.get("wrong"):
                state.failure = "its outputs cannot be compared with the reference"
        yardsticks = []
        for turn in range(request.rounds):
            order_of = list(range(len(states)))
            shift = turn % len(states)
            for number in (order_of[shift:] + order_of[:shift])[:: 1 if turn // 2 % 2 else -1]:
                state = states[number]
                if state.failure is not None:
                    continue
                order = {"do": "time", "number": number, "block_s": request.block_s}
                answer = _ask(processes[request.entries[number].environment], order, [state])
                if "us" in answer:
                    state.samples_us.append(answer["us"])
                    state.step_us.append(tuple(answer["step_us"]))
            yardsticks.append(yardstick_us())
    return BuildResult(tuple(state.built for state in states), tuple(yardsticks))


def _ask(process: WorkerProcess, order: dict[str, Any], states: Sequence[_Running]) -> dict[str, Any]:
    """An answer; where there is none, or it is a failure, these entries have failed."""
    try:
        answer = process.ask(order)
    except WorkerError as error:
        answer = {"failure": str(error)}
    if "failure" in answer:
        for state in states:
            state.failure = state.failure or answer["failure"]
    return answer


class Interleaver:
    """Makes builds and keeps what they found.

    Args:
        request: the environments, plans and entries.
        runner: where the child runs.
        cancel: stops it when set.
    """

    def __init__(
        self, request: BuildRequest, runner: Runner, cancel: threading.Event | None = None
    ) -> None:
        self.request = request
        self._runner, self._cancel = runner, cancel
        self.builds: list[BuildResult] = []

    def run(self, builds: int, rounds: int | None = None) -> None:
        """Make so many more builds.

        Raises:
            CancelledError: `cancel` was set.
            TimingError: the child failed for reasons that no entry has.
        """
        for _ in range(builds):
            # What is built first may have the better place in memory, so the order changes.
            backwards = len(self.builds) % 2 == 1
            entries = self.request.entries
            asked = entries[::-1] if backwards else entries
            result = self._once(
                replace(self.request, entries=asked, rounds=rounds or self.request.rounds)
            )
            ordered = result.entries[::-1] if backwards else result.entries
            self.builds.append(replace(result, entries=ordered))

    def failure(self, entry: int) -> str | None:
        """Why an entry could not be timed, or None."""
        return next((b.entries[entry].failure for b in self.builds if b.entries[entry].failure), None)

    def error(self, entry: int) -> float | None:
        """The largest error that was seen."""
        errors = [b.entries[entry].error for b in self.builds]
        return max((e for e in errors if e is not None), default=None)

    def ratio(self, slow: int, fast: int, skip: int = 0) -> Ratio:
        """How many times longer one entry takes than another, over builds.

        Args:
            skip: so many first builds do not count.
        """
        pairs = [(b.entries[slow].samples_us, b.entries[fast].samples_us) for b in self.builds[skip:]]
        return compare_builds(pairs)

    def _once(self, request: BuildRequest) -> BuildResult:
        processes = 64 + 8 * len(request.environments)
        limits = ChildLimits(
            timeout_s=request.timeout_s * (2 + len(request.entries)) + request.rounds * 60,
            processes=1024 + processes,
        )
        for _ in range(_KILLED_RETRIES + 1):
            try:
                with self._runner.alone(self._cancel):
                    found: BuildResult = self._runner.run(
                        run_build, request, limits=limits, cancel=self._cancel
                    )
                return found
            except ChildFailed as failure:
                last = failure
                if failure.kind != "killed":
                    break
        raise TimingError(f"timing several environments failed: {last.reason}\n{last.detail}") from last

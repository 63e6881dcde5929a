"""A user's own check of a plan: a function that gets a session and returns a number.

    # accuracy.py, in the current folder
    def evaluate(session):
        outputs = session.run(None, {"x": images[0]})
        return float((outputs[0].argmax(axis=1) == labels).mean())

    collage tune model.onnx -t openvino -t 'openvino -precision=bf16' --evaluate accuracy:evaluate --at-least 0.76

The function is trusted and runs in the process that tunes; the plan's runtimes run in a child, which
gets each call of `session.run`. A server takes no such function.

Invariant: a plan for which the function crashed its child, raised, or gave no number within the bound
is not returned.
"""

from __future__ import annotations

import importlib
import math
import os
import queue
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from collage.accuracy.target_choice import exact_limit
from collage.backends.contract import SubModel
from collage.backends.numerics.tensor_files import read_samples, write_samples
from collage.backends.registry import on_gpus
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child, send_message
from collage.metrics.drop import check_bounds
from collage.model.sampling import Sampling
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.errors import BadInputError, CancelledError, CollageError, NoPlanError
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.compiled import CompiledRegions
from collage.runtime.executor import Executor
from collage.runtime.step import Step
from collage.timing.plan_timer import PlanTimer
from collage.timing.timed_plan import TimedPlan

_LONGEST_S = 24 * 3600.0
_Answer = dict[str, np.ndarray] | ChildFailed | CancelledError


class EvaluationError(CollageError):
    """The runtimes of a plan that is being evaluated failed."""


@dataclass(frozen=True)
class Served:
    """A plan as the child runs it."""

    steps: tuple[tuple[SubModel, Target], ...]  # sub-models and targets in execution order
    inputs: tuple[TensorSpec, ...]  # the graph's inputs
    outputs: tuple[str, ...]  # names of its outputs
    threads: int  # of one call
    folder: Path  # has a named pipe `calls`, and files of inputs
    cache_dir: Path | None  # for what is compiled


class PlanSession:
    """A plan's runtimes in a child, called as `collage.load`'s sessions are. Use as a context manager."""

    def __init__(
        self,
        regions: RegionFiles,
        plan: Plan,
        folder: Path,
        threads: int,
        cache_dir: Path | None = None,
        cancel: threading.Event | None = None,
    ) -> None:
        index = regions.model.index
        self.inputs = tuple(index.values[name] for name in index.inputs)
        self.outputs = tuple(index.values[name] for name in index.outputs)
        made = tuple(name for name in index.outputs if name in index.producer)
        steps = tuple((regions.of(p), p.target) for p in plan.partitions)
        self._served: Served = Served(steps, self.inputs, made, threads, folder, cache_dir)
        self._child: Callable[[Any], None] = serve
        self._cancel = cancel
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._count = 0

    def __enter__(self) -> PlanSession:
        pipe = self._served.folder / "calls"
        os.mkfifo(pipe)
        pipe.chmod(0o666)
        # Open at both ends, so that opening does not block and the child sees no early end.
        self._calls = os.fdopen(os.open(pipe, os.O_RDWR), "w", buffering=1)
        self._thread = threading.Thread(target=self._serve, name="evaluation", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.write("\n")
        self._thread.join()
        self._calls.close()

    def run(
        self, output_names: Sequence[str] | None, feed: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """Compute outputs from inputs, as `collage.artifact.session.Session.run` does.

        Raises:
            BadInputError: an input is missing, or of a wrong type or shape.
            EvaluationError: the plan's runtimes failed.
            CancelledError: the run was cancelled.
        """
        self._check(feed)
        path = self._served.folder / f"{self._count}.npz"
        self._count += 1
        write_samples(path, [feed])
        self._calls.write(f"{path.name}\n")
        answer = self._answers.get()
        path.unlink()
        if not isinstance(answer, dict):
            self._answers.put(answer)
        if isinstance(answer, CancelledError):
            raise answer
        if isinstance(answer, ChildFailed):
            raise EvaluationError(f"the plan failed while it was evaluated: {answer.reason}")
        made = {**feed, **answer}
        return [made[name] for name in output_names or [spec.name for spec in self.outputs]]

    def _check(self, feed: Mapping[str, np.ndarray]) -> None:
        """Raise where an input is missing, or of a wrong type or shape."""
        for spec in self.inputs:
            value = feed.get(spec.name)
            if value is None or value.dtype.name != spec.dtype or value.shape != spec.static_shape:
                raise BadInputError(f"input {spec.name!r} must be {spec.dtype} {spec.static_shape}")

    def _serve(self) -> None:
        gpus = on_gpus(target for _, target in self._served.steps)
        limits = ChildLimits(timeout_s=_LONGEST_S, address_bytes=0 if gpus else None, gpus=gpus)
        try:
            run_in_child(
                self._child,
                self._served,
                limits=limits,
                cancel=self._cancel,
                on_message=self._answers.put,
            )
        except (ChildFailed, CancelledError) as failure:
            self._answers.put(failure)


def serve(served: Served) -> None:
    """Answer calls until an empty line comes; called in the child."""
    compiled = CompiledRegions(served.threads, served.cache_dir)
    steps = [
        Step(compiled.get(str(i), model, target), model.inputs, model.outputs)
        for i, (model, target) in enumerate(served.steps)
    ]
    executor = Executor(steps, served.inputs, served.outputs)
    executor.bind()
    with (served.folder / "calls").open(encoding="utf-8") as calls:
        for line in calls:
            if not line.strip():
                break
            (sample,) = read_samples(served.folder / line.strip(), served.inputs)
            executor.feed(sample)
            executor.run()
            send_message(executor.results())
    compiled.close()


@dataclass(frozen=True)
class Check:
    """A function of a session, and the bound on its value.

    Raises:
        BadInputError: not exactly one bound is given, or it is no number that makes sense.
    """

    function: Callable[[Any], float]  # gets a `PlanSession`, returns a number
    max_drop: float | None = (
        None  # of a value that is better the larger it is, relative to the exact plan's
    )
    at_least: float | None = None  # the smallest value that passes; None for no such bound
    at_most: float | None = None  # the largest
    attempts: int = field(init=False, default=0)  # it proves nothing by samples

    def __post_init__(self) -> None:
        check_bounds(self.max_drop, self.at_least, self.at_most)

    def beside(self, session: PlanSession) -> Check:
        """The same with `max_drop` as a number, by the value of an exact plan.

        Raises:
            BadInputError: a share of that value means nothing.
            EvaluationError: the exact plan failed.
        """
        assert self.max_drop is not None
        value = float(self.function(session))
        if not value > 0:
            raise BadInputError(
                f"the evaluation of the model itself gave {value:.6g}, so a relative drop means nothing: "
                "give at_least or at_most"
            )
        return replace(self, max_drop=None, at_least=value * (1 - self.max_drop))

    def refusal(self, session: PlanSession, is_exact: bool = False) -> str | None:
        """Why a plan does not pass, or None."""
        try:
            value = float(self.function(session))
        except EvaluationError as error:
            return str(error)
        if self.at_least is not None and not value >= self.at_least:
            return f"its evaluation gave {value:.6g}, and at least {self.at_least:g} is asked for"
        if self.at_most is not None and not value <= self.at_most:
            return f"its evaluation gave {value:.6g}, and at most {self.at_most:g} is asked for"
        return None if math.isfinite(value) else f"its evaluation gave {value}"


class PlanCheck(Protocol):
    """Whatever says whether a plan may be returned."""

    @property
    def attempts(self) -> int:
        """Plans that were scored on samples that prove; each makes it harder for the next to be proven."""

    def refusal(self, session: PlanSession, is_exact: bool = False) -> str | None:
        """Why a plan does not pass, or None.

        Args:
            session: of the plan.
            is_exact: whether it computes the model as fp32 does.
        """


@dataclass(frozen=True)
class Evaluation:
    """Finds the fastest timed plan that passes a check."""

    check: PlanCheck  # the user's, or a metric's
    timer: PlanTimer  # the plans
    regions: RegionFiles  # sub-models of their partitions
    samples: Sampling  # threads and folders of the run

    def passing(self, winner: TimedPlan) -> TimedPlan:
        """The fastest plan that passes; the others are marked as failures.

        Where a plan failed on samples that prove, those that err as much as it are not tried: they would take the
        proof from plans that err less.

        Args:
            winner: the plan to begin with.

        Raises:
            NoPlanError: none passes; the message has the value of each.
        """
        while not self.passes(winner):
            winner = self.timer.standings.winner()
        return winner

    def passes(self, entry: TimedPlan) -> bool:
        """Whether a timed plan passes; where not, it and those that `passing` would not try are marked as failures."""
        attempts = self.check.attempts
        reason = self.refusal(entry)
        if reason is None:
            return True
        self.timer.refuse(entry, reason)
        if self.check.attempts > attempts and entry.exactness > self._exact_limit:
            for other in self._erring_as_much(entry):
                self.timer.refuse(other, f"{entry.name} errs no more and did not pass")
        return False

    def _erring_as_much(self, refused: TimedPlan) -> list[TimedPlan]:
        left = (entry for entry in self.timer.entries if entry.timed and entry is not refused)
        return [entry for entry in left if entry.exactness >= refused.exactness]

    def beside_exact(self) -> Evaluation:
        """The same, with a bound relative to an exact plan as a number.

        Raises:
            NoPlanError: no plan computes the model exactly.
        """
        if not isinstance(self.check, Check) or self.check.max_drop is None:
            return self
        timed = (entry for entry in self.timer.entries if entry.timed)
        exact = min(timed, key=lambda entry: entry.exactness, default=None)
        if exact is None or exact.exactness > self._exact_limit:
            raise NoPlanError("max_drop is relative to an exact plan, and none ran: give at_least")
        with self._session(exact) as session:
            return replace(self, check=self.check.beside(session))

    def refusal(self, entry: TimedPlan) -> str | None:
        """Why a timed plan does not pass, or None."""
        with self._session(entry) as session:
            return self.check.refusal(session, entry.exactness <= self._exact_limit)

    @property
    def _exact_limit(self) -> float:
        return exact_limit(entry.exactness for entry in self.timer.entries)

    def _session(self, entry: TimedPlan) -> PlanSession:
        return session_of(entry.plan, self.regions, self.samples)


def session_of(plan: Plan, regions: RegionFiles, samples: Sampling) -> PlanSession:
    """A session of a plan, with a folder of its own among those of the run."""
    folder = Path(tempfile.mkdtemp(prefix="evaluate-", dir=samples.work_dir))
    return PlanSession(regions, plan, folder, samples.threads, samples.cache_dir, samples.cancel)


def load_function(text: str) -> Callable[[Any], float]:
    """The function named by `module:function`; modules in the current folder are found.

    Raises:
        BadInputError: there is no such function.
    """
    module_name, _, name = text.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Callable[[Any], float] = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInputError(
            f"evaluate={text!r}: {error}; name a function as module:function, in a file of this folder "
            "or an installed package"
        ) from None
    return found

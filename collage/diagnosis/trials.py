"""Trials of a model's regions on one target, each in its sandbox, counted and remembered."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from collage.backends.contract import SubModel
from collage.backends.numerics.tensor_files import write_samples
from collage.backends.registry import canonical, check_options
from collage.backends.sandbox.run import ChildFailed, ChildLimits
from collage.diagnosis.child import try_here
from collage.diagnosis.trial import Outcome, Trial, TrialRequest
from collage.events import Event, Listener
from collage.model.reference import Reference
from collage.model.sub_models import RegionFiles
from collage.partitioner.errors import CollageError
from collage.partitioner.target import HOST_MEMORY, Target
from collage.runner import Runner

# A child that something else killed says nothing about the region.
_KILLED_RETRIES = 2
# A region that takes so many times the longest that came back is likely to hang.
_PATIENCE, _LEAST_TIMEOUT_S = 8.0, 5.0
_CAME_BACK: tuple[Outcome, ...] = ("right", "wrong", "refused")


@dataclass(frozen=True)
class TrialSettings:
    """What all trials of a diagnosis share."""

    target: Target
    threads: int
    tolerance: float
    metric: str = "max"
    runs: int = 3
    timeout_s: float = 60.0
    cache_dir: Path | None = None


class Trials:
    """Tries node sets (bitsets) of one model.

    Args:
        regions: sub-models of the model.
        reference: samples, and the right value of every tensor.
        settings: what all trials share.
        runner: where they run.
        listener: is told about every trial.
        cancel: stops them when set.
    """

    def __init__(
        self,
        regions: RegionFiles,
        reference: Reference,
        settings: TrialSettings,
        runner: Runner,
        listener: Listener,
        cancel: threading.Event | None = None,
    ) -> None:
        self._regions, self._reference, self.settings = regions, reference, settings
        self._runner, self._listener, self._cancel = runner, listener, cancel
        self._known: dict[int, Trial] = {}
        self._longest_s = 0.0
        self._is_patient = False  # True once a region came back that was said to hang
        self._given_up: set[int] = set()  # hang within less than the full time
        self.count = 0

    def of(self, nodes: int) -> Trial:
        """The trial of a convex set of nodes; each set is tried once."""
        if nodes not in self._known:
            request = self.request(self._regions.get(nodes))
            timeout_s = self._timeout_s
            self._known[nodes] = self.run(request, f"{nodes.bit_count()} nodes")
            if self._known[nodes].outcome == "hang" and timeout_s < self.settings.timeout_s:
                self._given_up.add(nodes)
            if self._known[nodes].outcome == "right":
                self._regions.drop(nodes)
        return self._known[nodes]

    def really_hangs(self, nodes: int) -> bool:
        """Whether a set that was said to hang also does when it has the full time.

        Where one comes back, no such word is believed any more: all that had less time are forgotten, and
        every later trial has the full time.
        """
        if nodes not in self._given_up:
            return True
        self._given_up.remove(nodes)
        what = f"{nodes.bit_count()} nodes with more time"
        trial = self.run(self.request(self._regions.get(nodes)), what, self.settings.timeout_s)
        self._known[nodes] = trial
        if trial.outcome == "hang":
            return True
        self._is_patient = True
        for forgotten in self._given_up:
            del self._known[forgotten]
        self._given_up.clear()
        return False

    def knows(self, nodes: int) -> bool:
        """Whether a set was tried."""
        return nodes in self._known

    def sub_model(self, nodes: int) -> SubModel:
        """A set's sub-model."""
        return self._regions.get(nodes)

    def request(self, model: SubModel) -> TrialRequest:
        """What is asked about a sub-model of this model."""
        folder = model.path.parent
        inputs, expected = folder / "inputs.npz", folder / "expected.npz"
        if not expected.exists():
            write_samples(inputs, self._reference.values([s.name for s in model.inputs]))
            write_samples(expected, self._reference.expected([s.name for s in model.outputs]))
        settings = self.settings
        return TrialRequest(
            target=canonical(settings.target, settings.threads),
            model=model,
            inputs_path=inputs,
            expected_path=expected,
            tolerance=settings.tolerance,
            metric=settings.metric,
            threads=settings.threads,
            runs=settings.runs,
            cache_dir=settings.cache_dir,
        )

    def run(self, request: TrialRequest, what: str, timeout_s: float | None = None) -> Trial:
        """One trial in a child.

        Args:
            request: what to run.
            what: it is, for people.
            timeout_s: after which it hangs; None for a time that is likely enough.

        Raises:
            CancelledError: `cancel` was set.
            CollageError: the child was killed from outside again and again, or our own code failed.
        """
        self.count += 1
        begin = time.monotonic()
        trial = self._in_child(request, timeout_s or self._timeout_s)
        seconds = time.monotonic() - begin
        trial = replace(trial, seconds=seconds)
        if trial.outcome in _CAME_BACK:
            self._longest_s = max(self._longest_s, seconds)
        said = trial.outcome if not trial.reason else f"{trial.outcome}: {trial.reason}"
        self._listener(Event("trial", f"trial {self.count}: {what}: {said}", self.count))
        return trial

    @property
    def _timeout_s(self) -> float:
        """The time after which a region is said to hang, once others came back."""
        if self._is_patient or not self._longest_s:
            return self.settings.timeout_s
        return min(self.settings.timeout_s, max(_LEAST_TIMEOUT_S, _PATIENCE * self._longest_s))

    def _in_child(self, request: TrialRequest, timeout_s: float) -> Trial:
        on_host = check_options(request.target).memory_domain(request.target) == HOST_MEMORY
        # GPU drivers reserve address space by the terabyte.
        limits = ChildLimits(timeout_s=timeout_s, memory_bytes=None if on_host else 0)
        return in_child(request, limits, self._runner, self._cancel)


def in_child(
    request: TrialRequest, limits: ChildLimits, runner: Runner, cancel: threading.Event | None
) -> Trial:
    """A trial in a child; how a child dies is the outcome.

    Raises:
        CollageError: it was killed from outside again and again, or our own code failed.
    """
    for _ in range(_KILLED_RETRIES + 1):
        stages = ["starting"]
        try:
            with runner.alone(cancel):
                found: Trial = runner.run(
                    try_here, request, limits=limits, cancel=cancel, on_message=stages.append
                )
            return found
        except ChildFailed as failure:
            last, stage = failure, stages[-1]
            if failure.kind == "killed":
                continue
            if failure.kind in ("error", "out_of_disk"):
                raise CollageError(
                    f"a trial of {request.target} failed in our own code: {failure.reason}\n{failure.detail}"
                ) from failure
            outcomes: dict[str, Outcome] = {"out_of_memory": "out of memory", "hang": "hang"}
            outcome = outcomes.get(failure.kind, "crash")
            return Trial(outcome, f"{failure.reason} (while {stage})")
    raise CollageError(
        f"a trial of {request.target} was interrupted {_KILLED_RETRIES + 1} times ({last.reason}); "
        "look for what kills its processes"
    ) from last

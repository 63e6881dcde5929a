"""What a tuning run is asked for, and what it runs with."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from collage.accuracy.evaluation import Check
from collage.cost_db.database import CostDatabase
from collage.deadline import is_kept, preparing_end_s, writing_end_s
from collage.events import Event, Listener, ignore
from collage.options import TuneOptions
from collage.partitioner.errors import CancelledError
from collage.partitioner.target import Target
from collage.runner import Runner

# What share of the time limit trials of another objective than latency have.
_OBJECTIVE_SHARE = 0.4
# So many stages are named where a run takes too long.
_STAGES_TOLD = 3


@dataclass(frozen=True)
class TuneRequest:
    """What the caller asked for.

    Args:
        source: an ONNX file, or a zip with an ONNX file and its external data.
        targets: in the order in which they were given.
        options: what the caller chose.
        inputs: sample inputs (see `collage.model.sample_inputs.read_samples`); None for seeded ones.
        check: the caller's own check of the plan that is returned.
        labels: the truth of a built-in metric, as .npy or .npz; None where the reference is the truth.
        whole_limit_s: the caller's time limit, where the options have a part of it.
        is_part: the plan is for a range of sizes, whose artifact is written at the end; here none is.
        artifact_name: file name of the artifact; large weights beside it are named after it.
    """

    source: Path
    targets: tuple[Target, ...]
    options: TuneOptions
    inputs: Path | None = None
    check: Check | None = None
    artifact_name: str = "model.collage.onnx"
    labels: Path | None = None
    whole_limit_s: float | None = None
    is_part: bool = False

    @property
    def searches(self) -> bool:
        """True when plans are searched; the other strategies make the one that their name says."""
        return self.options.strategy == "optimal" and self.options.plan is None


def seconds_kept(options: TuneOptions, limit_s: float) -> float:
    """Seconds of a limit in which plans are measured with several requests at once, not searched."""
    return 0.0 if options.objective == "latency" else _OBJECTIVE_SHARE * limit_s


class Clock:
    """When a run began, how long each stage has taken, and when it is expected to be over at the latest.

    Args:
        now: tells the time.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.begin_s = now()
        self._seconds: dict[str, float] = {}
        self._end_s: float | None = None
        self._share = 0.0

    @property
    def total_s(self) -> float:
        """Seconds since the run began."""
        return self._now() - self.begin_s

    @property
    def seconds(self) -> Mapping[str, float]:
        """Per stage that has ended."""
        return dict(self._seconds)

    def add(self, stage: str, seconds: float) -> None:
        """Count time as a stage's."""
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def expect(self, seconds: float) -> None:
        """Note that the rest of the run takes so long at the most."""
        self._end_s = self._now() + seconds

    @property
    def remaining_s(self) -> float | None:
        """Seconds that the rest takes at the most, never negative; None before anything is known of it."""
        return None if self._end_s is None else max(0.0, self._end_s - self._now())

    @property
    def share_done(self) -> float | None:
        """Which share of the run's time has passed; it never falls, and is 1 only when nothing is left."""
        left_s = self.remaining_s
        if left_s is None:
            return None
        self._share = max(self._share, self.total_s / max(self.total_s + left_s, 1e-9))
        return self._share

    def marked(self, event: Event) -> Event:
        """An event with what is known of the time left."""
        if event.stage == "done":
            return replace(event, share_done=1.0, remaining_s=0.0)
        share, left_s = self.share_done, self.remaining_s
        if share is None or left_s is None:
            return event
        return replace(event, share_done=round(min(share, _ALMOST), 3), remaining_s=round(left_s, 1))


# A run that takes longer than expected is never said to be over.
_ALMOST = 0.99


@dataclass(frozen=True)
class Run:
    """What every stage runs with.

    Args:
        database: where costs are looked up and stored.
        work_dir: an empty folder for files of this run; the artifact is left in it.
        runner: where runtimes run.
        listener: is told about every step.
        cancel: stops the run when set.
        clock: started with the run.
        limit_s: the caller's time limit; None where there is none.
        prepared_by_s: the model is read and its reference values are computed by then, by `time.monotonic`.
        written_by_s: the artifact is written by then.
    """

    database: CostDatabase
    work_dir: Path
    runner: Runner = field(default_factory=Runner)
    listener: Listener = ignore
    cancel: threading.Event | None = None
    clock: Clock = field(default_factory=Clock)
    limit_s: float | None = None
    prepared_by_s: float = math.inf
    written_by_s: float = math.inf

    def within(self, limit_s: float | None) -> Run:
        """The same, in a time limit of the caller's; None for none."""
        if limit_s is None:
            return self
        begin_s = self.clock.begin_s

        def say(text: str) -> None:
            self.listener(Event("measure", text))

        return replace(
            self,
            runner=self.runner.waiting_until(begin_s + limit_s, say),
            limit_s=limit_s,
            prepared_by_s=preparing_end_s(begin_s, limit_s),
            written_by_s=writing_end_s(begin_s, limit_s),
        )

    def about_overrun(self, rest_s: float = 0.0) -> list[str]:
        """What the report warns of where the run takes longer than is promised of its time limit.

        Args:
            rest_s: seconds that the rest of the run is expected to take.
        """
        total_s, limit_s = self.clock.total_s + rest_s, self.limit_s
        if limit_s is None or is_kept(total_s, limit_s):
            return []
        longest = sorted(self.clock.seconds.items(), key=lambda stage: -stage[1])[:_STAGES_TOLD]
        stages = ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in longest)
        return [
            f"the run takes about {total_s:.0f} s, longer than its time limit of {limit_s:g} s ({stages}); allow more with "
            "--time-limit",
        ]

    def telling_time(self) -> Run:
        """The same, whose listener also hears how much time is left."""
        return replace(self, listener=lambda event: self.listener(self.clock.marked(event)))

    @contextmanager
    def stage(self, name: str, message: str) -> Iterator[None]:
        """Tell the listener that a stage begins, and count its time.

        Raises:
            CancelledError: `cancel` was set.
        """
        if self.cancel is not None and self.cancel.is_set():
            raise CancelledError(f"cancelled before the stage {name}")
        self.listener(Event(name, message))
        begin_s = time.monotonic()
        yield
        self.clock.add(name, time.monotonic() - begin_s)

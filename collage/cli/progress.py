"""Progress for people, on stderr: one line on a terminal, else a line for each step."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from collage.events import Event, Listener

_STEPS = (
    "reading the model",
    "measuring the whole model on each target",
    "timing first plans",
    "searching",
    "timing the best plans",
    "writing the artifact",
)
_READ, _MEASURE, _TIME, _SEARCH, _CONFIRM, _WRITE = range(len(_STEPS))
_NEWS = ("waiting", "queued", "failed", "cancelled")


class TuningProgress:
    """How far a tuning run is, from its events.

    Args:
        step: index of the current step.
        waits_for: why it waits; empty where it does not.
        now: tells the time.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.step = _READ
        self.waits_for = ""
        self._measured = self._unknown = self._most_nodes = 0
        self._alone_us: dict[str, float] = {}
        self._ratios: dict[tuple[str, str], float] = {}
        self._baseline_us = 0.0
        self._now = now
        self._end_s: float | None = None
        self._share = 0.0

    def update(self, event: Event) -> None:
        """Take one more event into account."""
        self.waits_for = event.message if event.stage in _NEWS else ""
        if event.remaining_s is not None and event.share_done is not None:
            self._end_s, self._share = self._now() + event.remaining_s, event.share_done
        if event.stage == "measure":
            self._measure(event)
        elif event.stage == "search":
            self._reach(_SEARCH)
            self._unknown = int(event.data.get("unknown", 0))
        elif event.stage == "end_to_end":
            self._reach(_TIME if self.step < _SEARCH else _CONFIRM)
            if event.data.get("ratio") is not None:
                self._time(event.data)
        elif event.stage in ("evaluate", "objective"):
            self._reach(_CONFIRM)
        elif event.stage in ("emit", "done"):
            self._reach(_WRITE)

    def describe(self) -> str:
        """One line: the step, what is left of it, and the best plan so far."""
        if self.waits_for:
            return self.waits_for
        parts = [f"step {self.step + 1} of {len(_STEPS)}: {_STEPS[self.step]}"]
        if self.step == _SEARCH:
            parts.append(f"{self._measured} measured, {self._unknown} left")
        if self._end_s is not None:
            left_s = max(0.0, self._end_s - self._now())
            parts.append(f"{self._share:.0%}, at most {left_s:.0f} s left")
        if best := self._best():
            parts.append(f"best so far {best}")
        return " · ".join(parts)

    def _measure(self, event: Event) -> None:
        self._reach(_MEASURE if self.step <= _MEASURE else _SEARCH)
        nodes, latency_us = event.data.get("nodes"), event.data.get("latency_us")
        if nodes is None:
            return
        self._measured += 1
        self._unknown = max(0, self._unknown - 1)
        self._most_nodes = max(self._most_nodes, nodes)
        if latency_us is not None and nodes == self._most_nodes and self.step == _MEASURE:
            self._alone_us[event.data["target"]] = latency_us

    def _time(self, data: Mapping[str, Any]) -> None:
        self._ratios[data["plan"], _named(data)] = data["ratio"]
        if data["ratio"] == 1.0:
            self._baseline_us = data["latency_us"]

    def _reach(self, step: int) -> None:
        self.step = max(self.step, step)

    def _best(self) -> str:
        """The fastest plan: of those timed in turn, before that of targets measured alone."""
        timed = [(ratio * self._baseline_us, name) for (_, name), ratio in self._ratios.items()]
        alone = [(latency_us, target) for target, latency_us in self._alone_us.items()]
        latency_us, name = min(timed or alone, default=(0.0, ""))
        return name and f"{name}, {latency_us / 1e3:.3g} ms"


@contextmanager
def progress(verbose: bool = False) -> Iterator[Listener]:
    """A listener that shows a tuning run while the block runs.

    Args:
        verbose: show every event.
    """
    if sys.stderr.isatty():
        with _live_line(verbose) as listener:
            yield listener
    else:
        yield _print_event if verbose else _plain_lines()


def _print_event(event: Event) -> None:
    print(f"{event.stage}: {event.message}", file=sys.stderr, flush=True)


def _plain_lines() -> Listener:
    """A listener that prints a line at the begin of each step."""
    now, last, begin = TuningProgress(), "", time.monotonic()

    def show(event: Event) -> None:
        nonlocal last
        now.update(event)
        key = now.waits_for or _STEPS[now.step]
        if key != last:
            last = key
            print(f"{time.monotonic() - begin:5.0f} s  {now.describe()}", file=sys.stderr, flush=True)

    return show


class _Line(ProgressColumn):
    """What a run does now; the seconds left count down between its events."""

    def __init__(self, now: TuningProgress, column: Column) -> None:
        super().__init__(column)
        self._now_doing = now

    def render(self, task: Task) -> Text:
        return Text(self._now_doing.describe())


@contextmanager
def _live_line(verbose: bool) -> Iterator[Listener]:
    now = TuningProgress()
    one_line = Column(no_wrap=True, overflow="ellipsis")
    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(), TimeElapsedColumn(), _Line(now, one_line), console=console, transient=True
    ) as bar:
        bar.add_task("", total=None)

        def show(event: Event) -> None:
            now.update(event)
            if verbose:
                console.print(f"{event.stage}: {event.message}", markup=False, highlight=False)

        yield show


def _named(data: Mapping[str, Any]) -> str:
    targets = ", ".join(dict.fromkeys(data.get("targets", ()))) or data["plan"]
    count = data["partitions"]
    return targets if count == 1 else f"{count} partitions ({targets})"

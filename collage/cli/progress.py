"""Progress for people, on stderr: one line on a terminal, else a line for each step."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

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
_NEWS = ("waiting", "queued", "running", "failed", "cancelled")


@dataclass
class TuningProgress:
    """How far a tuning run is, from its events.

    Args:
        step: index of the current step.
        measured: how many regions were measured so far.
        unknown: how many measurements the search asks for now.
        best: the fastest plan so far, and its time.
        waits_for: why it waits; empty where it does not.
    """

    step: int = _READ
    measured: int = 0
    unknown: int = 0
    best: str = ""
    waits_for: str = ""
    _best_rank: tuple[int, float] = (2, 0.0)
    _nodes: int = 0

    def update(self, event: Event) -> None:
        """Take one more event into account."""
        self.waits_for = event.message if event.stage in _NEWS else ""
        if event.stage == "measure":
            self._measure(event)
        elif event.stage == "search":
            self._reach(_SEARCH)
            self.unknown = int(event.data.get("unknown", 0))
        elif event.stage == "end_to_end":
            self._reach(_TIME if self.step < _SEARCH else _CONFIRM)
            if event.data.get("latency_us") is not None:
                name = _named(event.data["plan"], event.data["partitions"])
                self._rank(name, (0, event.data["ratio"]), event.data["latency_us"])
        elif event.stage == "evaluate":
            self._reach(_CONFIRM)
        elif event.stage in ("emit", "done"):
            self._reach(_WRITE)

    def describe(self) -> str:
        """One line: the step, what is left of it, and the best plan so far."""
        if self.waits_for:
            return self.waits_for
        parts = [f"step {self.step + 1} of {len(_STEPS)}: {_STEPS[self.step]}"]
        if self.step == _SEARCH:
            parts.append(f"{self.measured} measured, {self.unknown} left")
        if self.best:
            parts.append(f"best so far {self.best}")
        return " · ".join(parts)

    def _measure(self, event: Event) -> None:
        self._reach(_MEASURE if self.step <= _MEASURE else _SEARCH)
        nodes, latency_us = event.data.get("nodes"), event.data.get("latency_us")
        if nodes is None:
            return
        self.measured += 1
        self.unknown = max(0, self.unknown - 1)
        self._nodes = max(self._nodes, nodes)
        if latency_us is not None and nodes == self._nodes and self.step == _MEASURE:
            self._rank(event.data["target"], (1, latency_us), latency_us)

    def _reach(self, step: int) -> None:
        self.step = max(self.step, step)

    def _rank(self, name: str, rank: tuple[int, float], latency_us: float) -> None:
        """Keep what is the fastest; plans that ran in turn count more than what was measured alone."""
        if rank < self._best_rank:
            self._best_rank = rank
            self.best = f"{name}, {latency_us / 1e3:.3g} ms"


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


@contextmanager
def _live_line(verbose: bool) -> Iterator[Listener]:
    now = TuningProgress()
    one_line = Column(no_wrap=True, overflow="ellipsis")
    text = TextColumn("{task.description}", markup=False, table_column=one_line)
    console = Console(stderr=True)
    with Progress(SpinnerColumn(), TimeElapsedColumn(), text, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(event: Event) -> None:
            now.update(event)
            if verbose:
                console.print(f"{event.stage}: {event.message}", markup=False, highlight=False)
            bar.update(task, description=now.describe())

        yield show


def _named(plan: str, partitions: int) -> str:
    return plan.removeprefix("single ") if partitions == 1 else f"a plan of {partitions} partitions"

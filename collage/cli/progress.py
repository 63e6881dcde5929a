"""Progress for people: a live line on a terminal, plain lines otherwise, always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from collage.events import Event, Listener


@contextmanager
def progress() -> Iterator[Listener]:
    """A listener that shows events while the block runs."""
    if not sys.stderr.isatty():
        yield lambda event: print(f"{event.stage}: {event.message}", file=sys.stderr, flush=True)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        stage = ""

        def show(event: Event) -> None:
            nonlocal stage
            if event.stage != stage:
                stage = event.stage
                console.print(f"[bold]{event.stage}[/bold] {event.message}", highlight=False)
            bar.update(task, description=f"{event.stage}: {event.message[:100]}")

        yield show

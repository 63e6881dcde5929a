"""Progress of a tuning run: one frozen value per step, for terminals, logs and streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """One step of progress.

    Args:
        stage: `waiting` (for a worker or another tuner), `ingest`, `reference`, `candidates`, `measure`, `search`,
            `end_to_end`, `emit` or `done`.
        message: one line for people.
        done: how many steps of the stage are done, where they can be counted.
        total: how many steps the stage has.
        data: facts for programs: a measured cost, the best plan so far.
        share_done: how much of the run's time has passed, from 0 to 1, where that is known; it never falls.
        remaining_s: seconds that the rest takes at the most, where that is known.
    """

    stage: str
    message: str
    done: int | None = None
    total: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
    share_done: float | None = None
    remaining_s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The event as JSON-ready data."""
        return asdict(self)


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener that does nothing."""

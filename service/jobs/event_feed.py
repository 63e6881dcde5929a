"""Events of jobs for many listeners: one reader of the database for each job that is watched.

A job's events are numbered from 1 without gaps, so a stream can start after any number
(`Last-Event-ID`). Lives in the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from collage.cost_db.jobs.job import FINISHED
from collage.cost_db.jobs.job_events import JobEvent

Fetch = Callable[[str, int], Sequence[JobEvent] | None]


def ends_job(event: JobEvent) -> bool:
    """True for the last event of a job."""
    return event.kind == "state" and event.data["state"] in FINISHED


@dataclass
class _Tail:
    """What is known of a watched job's events."""

    events: list[JobEvent] = field(default_factory=list)
    watchers: int = 0
    ended: bool = False
    error: Exception | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    reader: asyncio.Task[None] | None = None


class EventFeed:
    """Streams of job events.

    Args:
        fetch: the events of a job after a number, in order, or None for a job that is gone; called in
            threads.
        poll_s: how often to look for new ones.
    """

    def __init__(self, fetch: Fetch, poll_s: float) -> None:
        self._fetch = fetch
        self._poll_s = poll_s
        self._tails: dict[str, _Tail] = {}

    @property
    def watchers(self) -> int:
        """How many streams are open."""
        return sum(tail.watchers for tail in self._tails.values())

    async def events(self, job_id: str, after: int) -> AsyncIterator[JobEvent]:
        """A job's events after a number, until the one that ends the job."""
        tail = self._tails.setdefault(job_id, _Tail())
        tail.watchers += 1
        if tail.reader is None:
            tail.reader = asyncio.create_task(self._read(job_id, tail))
        try:
            position = 0
            while True:
                news = tail.news
                for event in tail.events[position:]:
                    if event.seq > after:
                        yield event
                    position += 1
                if tail.error is not None:
                    raise tail.error
                if tail.ended:
                    return
                await news.wait()
        finally:
            tail.watchers -= 1
            if not tail.watchers:
                tail.reader.cancel()
                if self._tails.get(job_id) is tail:
                    del self._tails[job_id]

    async def _read(self, job_id: str, tail: _Tail) -> None:
        try:
            while not tail.ended:
                last = tail.events[-1].seq if tail.events else 0
                new = await asyncio.to_thread(self._fetch, job_id, last)
                if new is None:
                    tail.ended = True
                    self._announce(tail)
                elif new:
                    tail.events.extend(new)
                    tail.ended = ends_job(new[-1])
                    self._announce(tail)
                else:
                    await asyncio.sleep(self._poll_s)
        except Exception as error:  # the listeners get it: a silent reader would let them wait for ever
            tail.error = error
            self._announce(tail)

    def _announce(self, tail: _Tail) -> None:
        tail.news.set()
        tail.news = asyncio.Event()

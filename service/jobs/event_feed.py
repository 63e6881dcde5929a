"""Events of jobs for many listeners: one reader of the database for all jobs that are watched.

A job's events are numbered from 1 without gaps, so a stream can start after any number
(`Last-Event-ID`). Lives in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from collage.cost_db.jobs.job import FINISHED
from collage.cost_db.jobs.job_events import JobEvent

Fetch = Callable[[str, int], Sequence[JobEvent]]
Count = Callable[[Sequence[str]], Mapping[str, int]]

# Most events of one chunk: a late listener gets what was before in pieces.
_CHUNK_EVENTS = 500


def ends_job(event: JobEvent) -> bool:
    """True for the last event of a job."""
    return event.kind == "state" and event.data["state"] in FINISHED


def encode(event: JobEvent) -> bytes:
    """An event as a server sends it."""
    try:
        data = orjson.dumps({"at": event.created_at.isoformat(), **event.data})
    except orjson.JSONEncodeError:
        data = orjson.dumps({"at": event.created_at.isoformat(), "message": "cannot be shown"})
    return b"event: %b\nid: %d\ndata: %b\n\n" % (event.kind.encode(), event.seq, data)


@dataclass
class _Tail:
    """What is known of a watched job's events."""

    events: list[JobEvent] = field(default_factory=list)
    encoded: list[bytes] = field(default_factory=list)
    watchers: int = 0
    ended: bool = False
    error: Exception | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def announce(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


@dataclass(frozen=True)
class _New:
    """What a look into the database found for one job."""

    events: Sequence[JobEvent] = ()
    encoded: Sequence[bytes] = ()
    error: Exception | None = None
    is_gone: bool = False
    has_more: bool = False


class EventFeed:
    """Streams of job events.

    Args:
        fetch: the events of a job after a number, in order; called in threads.
        count: how many events each of these jobs has; called in threads.
        poll_s: how often to look for new ones.
    """

    def __init__(self, fetch: Fetch, count: Count, poll_s: float) -> None:
        self._fetch = fetch
        self._count = count
        self._poll_s = poll_s
        self._tails: dict[str, _Tail] = {}
        self._arrival = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    @property
    def watchers(self) -> int:
        """How many streams are open."""
        return sum(tail.watchers for tail in self._tails.values())

    async def events(self, job_id: str, after: int) -> AsyncGenerator[JobEvent, None]:
        """A job's events after a number, until the one that ends the job."""
        with self._watching(job_id) as tail:
            while True:
                news = tail.news
                for event in tail.events[after:]:
                    yield event
                    after += 1
                if tail.error is not None:
                    raise tail.error
                if tail.ended:
                    return
                await news.wait()

    async def chunks(self, job_id: str, after: int, tick_s: float) -> AsyncGenerator[bytes, None]:
        """The same as encoded events, some at a time, and an empty chunk after each `tick_s` without any."""
        with self._watching(job_id) as tail:
            while True:
                news = tail.news
                while new := tail.encoded[after : after + _CHUNK_EVENTS]:
                    after += len(new)
                    yield b"".join(new)
                if tail.error is not None:
                    raise tail.error
                if tail.ended:
                    return
                try:
                    async with asyncio.timeout(tick_s):
                        await news.wait()
                except TimeoutError:
                    yield b""

    @contextlib.contextmanager
    def _watching(self, job_id: str) -> Iterator[_Tail]:
        tail = self._tails.get(job_id)
        if tail is None:
            tail = self._tails[job_id] = _Tail()
            self._arrival.set()
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        tail.watchers += 1
        try:
            yield tail
        finally:
            tail.watchers -= 1
            if not tail.watchers and self._tails.get(job_id) is tail:
                del self._tails[job_id]

    async def _read(self) -> None:
        """Look for news until nobody watches."""
        while self._tails:
            self._arrival.clear()
            live = {job_id: tail for job_id, tail in self._tails.items() if not tail.ended}
            after = {job_id: len(tail.events) for job_id, tail in live.items()}
            found = await asyncio.to_thread(self._look, after)
            for job_id, new in found.items():
                tail = live[job_id]
                tail.events.extend(new.events)
                tail.encoded.extend(new.encoded)
                tail.error = new.error
                tail.ended = new.is_gone or bool(new.events and ends_job(new.events[-1]))
                if new.error is not None and self._tails.get(job_id) is tail:
                    del self._tails[job_id]  # whoever comes next tries again
                tail.announce()
            if any(new.has_more for new in found.values()):
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._arrival.wait()

    def _look(self, after: Mapping[str, int]) -> dict[str, _New]:
        """The jobs with news; what cannot be read is told to those that wait for it alone."""
        if not after:
            return {}
        try:
            counts = self._count(list(after))
        except Exception as error:
            return dict.fromkeys(after, _New(error=error))
        found = {}
        for job_id, seen in after.items():
            if job_id not in counts:
                found[job_id] = _New(is_gone=True)
            elif counts[job_id] > seen:
                try:
                    events = self._fetch(job_id, seen)
                    encoded = [encode(event) for event in events]
                    has_more = counts[job_id] > seen + len(events) > seen
                    found[job_id] = _New(events, encoded, has_more=has_more)
                except Exception as error:
                    found[job_id] = _New(error=error)
        return found

"""Long work that callers ask for: so many at a time, one of each caller, and the others wait in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from collage.partitioner.errors import CollageError

T = TypeVar("T")

_MOST_WAITING_EACH = 16


class TooManyWaitingError(CollageError):
    """So much of one caller's waits already that no more is taken."""


@dataclass
class _Caller:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    asked: int = 0


class Turns:
    """Runs functions in threads of their own, so that no other request waits for them.

    Lives in the event loop's thread.

    Args:
        places: how many run at one time.
    """

    def __init__(self, places: int) -> None:
        self._places = CapacityLimiter(places)
        self._callers: dict[str, _Caller] = {}

    def start(self, caller: str, work: Callable[[], T]) -> asyncio.Task[T]:
        """A task that gives what `work` returns, when it is the caller's turn.

        Raises:
            TooManyWaitingError: too much of the caller's waits already.
        """
        mine = self._callers.setdefault(caller, _Caller())
        if mine.asked >= _MOST_WAITING_EACH:
            raise TooManyWaitingError(
                f"{mine.asked} requests of yours wait for files to be read; try again when one has ended"
            )
        mine.asked += 1
        task = asyncio.create_task(self._run(mine, work))
        task.add_done_callback(lambda _: self._leave(caller, mine))
        return task

    async def _run(self, mine: _Caller, work: Callable[[], T]) -> T:
        async with mine.lock:
            return await to_thread.run_sync(work, limiter=self._places, abandon_on_cancel=True)

    def _leave(self, caller: str, mine: _Caller) -> None:
        mine.asked -= 1
        if not mine.asked:
            del self._callers[caller]

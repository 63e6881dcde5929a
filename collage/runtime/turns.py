"""Hands things out to those who ask, in the order in which they asked.

Invariants: a thing is with one asker at a time; nobody gets one before those who asked earlier; after
`close` nobody gets one any more, and everything is back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class ClosedError(Exception):
    """Nothing is handed out any more."""


class Turns(Generic[Thing]):
    """Things to be used by one asker at a time."""

    def __init__(self, things: Sequence[Thing]) -> None:
        self._lock = threading.Lock()
        self._all_back = threading.Condition(self._lock)
        self._count = len(things)
        self._free = list(things)
        self._waiting: deque[Callable[[Thing], None]] = deque()
        self._closed = False

    def ask(self, give: Callable[[Thing], None]) -> None:
        """Have `give(thing)` called once, here or in the thread that gives a thing back; it must not wait.

        Raises:
            ClosedError: after `close`.
        """
        with self._lock:
            if self._closed:
                raise ClosedError
            if not self._free:
                self._waiting.append(give)
                return
            thing = self._free.pop()
        give(thing)

    def take(self) -> Thing:
        """Wait for a thing.

        Raises:
            ClosedError: after `close`.
        """
        with self._lock:
            if self._closed:
                raise ClosedError
            if self._free:
                return self._free.pop()
            turn: _Turn[Thing] = _Turn()
            self._waiting.append(turn.give)
        try:
            turn.came.acquire()
        except BaseException:  # the thread was interrupted while it waited
            self._forgo(turn)
            raise
        return turn.things[0]

    def give_back(self, thing: Thing) -> None:
        """Hand a thing to who has waited longest."""
        with self._lock:
            if not self._waiting:
                self._free.append(thing)
                if len(self._free) == self._count:
                    self._all_back.notify_all()
                return
            give = self._waiting.popleft()
        give(thing)

    def close(self) -> None:
        """Refuse whoever asks from now on, and wait until those who asked before are done; may be called twice."""
        with self._lock:
            self._closed = True
            self._all_back.wait_for(lambda: len(self._free) == self._count and not self._waiting)

    def _forgo(self, turn: _Turn[Thing]) -> None:
        with self._lock:
            if turn.give in self._waiting:
                self._waiting.remove(turn.give)
                return
        while not turn.things:  # another thread is about to give it
            time.sleep(0)
        self.give_back(turn.things[0])


class _Turn(Generic[Thing]):
    """What one thread waits for."""

    def __init__(self) -> None:
        self.came = threading.Lock()
        self.came.acquire()
        self.things: list[Thing] = []

    def give(self, thing: Thing) -> None:
        self.things.append(thing)
        self.came.release()

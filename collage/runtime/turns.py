"""Hands things out to those who ask, in the order in which they asked.

Invariants: a thing is with one asker at a time; nobody gets one before those who asked earlier; after
`close` nobody gets one any more, and everything is back.
"""

from __future__ import annotations

import threading
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

    def free(self) -> Thing | None:
        """A thing that is free now, which nobody waits for; None where there is none.

        Raises:
            ClosedError: after `close`.
        """
        with self._lock:
            if self._closed:
                raise ClosedError
            return self._free.pop() if self._free else None

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

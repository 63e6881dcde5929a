"""Hands things out to those who ask, in the order in which they asked; tells them the answers.

Invariants: a thing is with one asker at a time; nobody gets one before those who asked earlier; after
`close` nobody gets one any more, and everything is back. What a future calls at its end never keeps a thread that
computes: it may make requests and close.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

Thing = TypeVar("Thing")
_IDLE_S = 0.1
# Futures log there what their callbacks raise.
_log = logging.getLogger("concurrent.futures")


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


class Callbacks:
    """Makes the calls that futures make at their end: in a thread of its own, one after the other."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], Any]] = deque()
        self._thread: threading.Thread | None = None
        self._calls = False
        self._here = threading.local()

    def future(self) -> Future[Any]:
        """A future whose callbacks do not run in a thread that computes."""
        return _Answered(self)

    def computes(self) -> None:
        """Note that this thread computes answers."""
        self._here.computes = True

    def call(self, action: Callable[[], Any]) -> None:
        """Make a call, later where this thread computes."""
        if not getattr(self._here, "computes", False):
            action()
            return
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="collage-callback")
                thread.start()
                self._thread = thread
            self._waiting.append(action)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until all calls are made; the thread that makes them does not wait for itself."""
        with self._changed:
            if self._thread is not threading.current_thread():
                self._changed.wait_for(lambda: not (self._waiting or self._calls))

    def _work(self) -> None:
        """Make calls; a thread that had none for a while ends, so that nobody has to end it."""
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._waiting, _IDLE_S):
                    self._thread = None
                    return
                self._calls, action = True, self._waiting.popleft()
            try:
                action()
            except BaseException:
                _log.exception("a callback of a future failed")
            del action  # it holds an answer
            with self._changed:
                self._calls = False
                self._changed.notify_all()


class _Answered(Future[Any]):
    def __init__(self, callbacks: Callbacks) -> None:
        super().__init__()
        self._callbacks = callbacks

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        super().add_done_callback(lambda future: self._callbacks.call(partial(fn, future)))

"""Requests to several instances: each runs at once in its caller's thread, or waits for its turn.

Invariant: whoever asks first is served first, whether it waits or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from collage.runtime.turns import Callbacks, Thing, Turns

Answer = TypeVar("Answer")


class Requests(Generic[Thing]):
    """Calls on things of which each is used by one call at a time; a future's callbacks may call and close.

    Args:
        things: what calls use.
    """

    def __init__(self, things: Sequence[Thing]) -> None:
        self._turns = Turns(things)
        # A call is given to a thread only with a thing to use, so there is always one free.
        self._threads = ThreadPoolExecutor(max(1, len(things)), "collage-request")
        self._callbacks = Callbacks()

    def run(self, call: Callable[[Thing], Answer]) -> Answer:
        """Make a call in its turn and wait for it.

        Raises:
            ClosedError: after `close`.
            Exception: what the call raises.
        """
        thing = self._turns.free()
        if thing is None:
            # A thread that goes from request to request leaves no thing idle while a caller wakes up.
            return self._waited_for(call)
        try:
            return call(thing)
        finally:
            self._turns.give_back(thing)

    def submit(self, call: Callable[[Thing], Answer]) -> Future[Answer]:
        """Make a call in another thread, in its turn.

        Raises:
            ClosedError: after `close`.
        """
        future: Future[Answer] = self._callbacks.future()

        def begin(thing: Thing) -> None:
            try:
                self._threads.submit(self._answer, future, call, thing)
            except RuntimeError as error:  # Python is ending
                self._turns.give_back(thing)
                future.set_exception(error)

        self._turns.ask(begin)
        return future

    def _waited_for(self, call: Callable[[Thing], Answer]) -> Answer:
        future = self.submit(call)
        try:
            return future.result()
        except BaseException:  # where this thread was interrupted, nobody wants the answer
            future.cancel()
            raise

    def close(self) -> None:
        """Refuse further calls and wait for those under way and waiting; may be called twice."""
        self._turns.close()
        self._threads.shutdown()
        self._callbacks.wait()

    def _answer(self, future: Future[Answer], call: Callable[[Thing], Answer], thing: Thing) -> None:
        self._callbacks.computes()
        if not future.set_running_or_notify_cancel():
            self._turns.give_back(thing)
            return
        try:
            answer = call(thing)
        except BaseException as error:
            self._turns.give_back(thing)
            future.set_exception(error)
        else:
            # What waits for the future may close the session.
            self._turns.give_back(thing)
            future.set_result(answer)

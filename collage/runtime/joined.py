"""Requests of few rows, joined to calls of many: how a plan with a batch dimension serves many clients.

Terms: a *row* is one entry along the first dimension of all inputs and outputs. An executor computes so many rows in each
call. A call has the rows of the requests that wait, oldest first, and its last rows are repeated where it is not full.

Invariants: rows do not depend on each other (the tuner has proven that). Whoever asks first is served first. A request
waits for others only for a small share of a call's time, and no other's failure is its own.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from collage.runtime.executor import Executor
from collage.runtime.turns import Callbacks, ClosedError

Feed = Mapping[str, np.ndarray]
# How long the oldest request waits for the call to fill: a share of the call before, within a bound.
_SHARE, _MOST_DELAY_S = 0.1, 0.002


class Waiting(Protocol):
    """What can wait in a queue."""

    @property
    def since(self) -> float:
        """When it came, by `time.perf_counter`."""


Item = TypeVar("Item", bound=Waiting)


@dataclass(frozen=True)
class _Asked:
    """A request in the queue."""

    names: Sequence[str]
    feed: Feed
    rows: int
    done: Future[list[np.ndarray]]
    since: float = field(default_factory=time.perf_counter)


class BatchQueue(Generic[Item]):
    """Requests that wait, until those at the front fill a call or the oldest has waited for the delay.

    Args:
        fitting: of those that wait, how many from the front make a call, and whether no further one could join it.
        delay_s: how long the oldest waits for others; may be set at any time.
    """

    def __init__(
        self, fitting: Callable[[Sequence[Item]], tuple[int, bool]], delay_s: float = 0.0
    ) -> None:
        self.delay_s = delay_s
        self._fitting = fitting
        self._waiting: deque[Item] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: Item, check: Callable[[], None] = lambda: None) -> None:
        """Add a request.

        Args:
            check: raises where there is no room.

        Raises:
            ClosedError: after `close`.
        """
        with self._changed:
            if self._closed:
                raise ClosedError
            check()
            self._waiting.append(item)
            self._changed.notify()

    def next(self) -> list[Item] | None:
        """Wait for the requests of the next call; None once closed and empty."""
        with self._changed:
            while True:
                while not self._waiting:
                    if self._closed:
                        return None
                    self._changed.wait()
                count, full = self._fitting(self._waiting)
                left_s = self._waiting[0].since + self.delay_s - time.perf_counter()
                if full or left_s <= 0 or self._closed:
                    taken = [self._waiting.popleft() for _ in range(count)]
                    if self._waiting:  # for a thread that slept while this one waited for more
                        self._changed.notify()
                    return taken
                self._changed.wait(left_s)

    def close(self) -> None:
        """Refuse further requests; `next` ends once none waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class JoinedRequests:
    """Requests to several executors, each of which computes many rows in a call.

    Args:
        executors: bound; each is used by one thread.
        rows: of a call.
    """

    def __init__(self, executors: Sequence[Executor], rows: int) -> None:
        self._rows = rows
        self._queue, self._callbacks = BatchQueue(self._fitting), Callbacks()
        self._threads = [
            threading.Thread(target=self._serve, args=(each,), name=f"collage-rows-{i}", daemon=True)
            for i, each in enumerate(executors)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, names: Sequence[str], feed: Feed) -> list[np.ndarray]:
        """Compute outputs of a request's rows, and wait for them.

        Args:
            names: of the outputs.
            feed: every input, each with as many rows, at most those of a call.

        Raises:
            ClosedError: after `close`.
            Exception: what the call raises.
        """
        future = self.submit(names, feed)
        try:
            return future.result()
        except BaseException:  # where this thread was interrupted, nobody wants the answer
            future.cancel()
            raise

    def submit(self, names: Sequence[str], feed: Feed) -> Future[list[np.ndarray]]:
        """The same in other threads.

        Raises:
            ClosedError: after `close`.
        """
        asked = _Asked(names, feed, len(next(iter(feed.values()))), self._callbacks.future())
        self._queue.put(asked)
        return asked.done

    def close(self) -> None:
        """Refuse further requests, and wait for those under way and waiting; may be called twice."""
        self.end()
        for thread in self._threads:
            thread.join()
        self._callbacks.wait()

    def end(self) -> None:
        """Refuse further requests; the threads end once none waits."""
        self._queue.close()

    def _serve(self, executor: Executor) -> None:
        self._callbacks.computes()
        while (asked := self._queue.next()) is not None:
            alive = [each for each in asked if each.done.set_running_or_notify_cancel()]
            if not alive:
                continue
            self._compute(executor, alive)

    def _compute(self, executor: Executor, asked: Sequence[_Asked]) -> None:
        begin = time.perf_counter()
        try:
            answers = _answers(executor, asked, self._rows)
        except BaseException as error:
            if len(asked) > 1 and isinstance(error, Exception):  # only one of them may be at fault
                for each in asked:
                    self._compute(executor, [each])
                return
            for each in asked:
                each.done.set_exception(error)
            return
        self._queue.delay_s = min(_MOST_DELAY_S, _SHARE * (time.perf_counter() - begin))
        for each, answer in zip(asked, answers, strict=True):
            each.done.set_result(answer)

    def _fitting(self, waiting: Sequence[_Asked]) -> tuple[int, bool]:
        """How many requests make the next call, and whether no further one could join it."""
        count = rows = 0
        for asked in waiting:
            if count and rows + asked.rows > self._rows:
                return count, True
            count, rows = count + 1, rows + asked.rows
        return count, rows >= self._rows


def _answers(executor: Executor, asked: Sequence[_Asked], rows: int) -> list[list[np.ndarray]]:
    executor.feed(joined([each.feed for each in asked], rows))
    executor.run()
    found, start = [], 0
    for each in asked:
        end = start + each.rows
        found.append([executor.value(name)[start:end].copy() for name in each.names])
        start = end
    return found


def joined(feeds: Sequence[Feed], rows: int) -> dict[str, np.ndarray]:
    """One feed of so many rows: those of all feeds, and the last one again where they are fewer."""
    made = {}
    for name in feeds[0]:
        arrays = [feed[name] for feed in feeds]
        lacking = rows - sum(len(array) for array in arrays)
        if lacking:
            arrays.append(np.repeat(arrays[-1][-1:], lacking, axis=0))
        made[name] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return made

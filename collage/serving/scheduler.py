"""Requests wait in a queue of bounded length; one thread for each instance takes them in order.

A thread takes the oldest request, and where batches are allowed those behind it that fit, until the batch is full or
the oldest has waited for the delay.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from collage.partitioner.errors import BadInputError
from collage.runtime.joined import BatchQueue
from collage.runtime.turns import ClosedError
from collage.serving.batches import Rows
from collage.serving.engine import Engine
from collage.serving.errors import RequestError, bad
from collage.serving.metrics import Metrics

_log = logging.getLogger("collage.serving")


@dataclass(frozen=True)
class Call:
    """A request in the queue: what it brings, what it wants, and where the answer goes."""

    feed: Mapping[str, np.ndarray]
    names: tuple[str, ...]
    rows: int
    key: object
    done: Future[list[np.ndarray]] = field(default_factory=Future)
    since: float = field(default_factory=time.perf_counter)


class Scheduler:
    """The queue and the threads of an engine."""

    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        *,
        rows: Rows | None,
        max_delay_s: float,
        queue_length: int,
    ) -> None:
        """Start the threads.

        Args:
            rows: how requests are joined; None to run each alone.
            max_delay_s: how long the oldest request of a batch waits for others.
            queue_length: so many requests may wait.
        """
        self._engine, self._metrics, self._rows = engine, metrics, rows
        self._queue, self._length = BatchQueue(self._fitting, max_delay_s), queue_length
        metrics.watch_queue(lambda: len(self._queue))
        # A run that never ends must not keep the process.
        self._threads = [
            threading.Thread(target=self._serve, name=f"instance-{i}", daemon=True)
            for i in range(engine.instances)
        ]
        for thread in self._threads:
            thread.start()

    def check_room(self) -> None:
        """Raise RequestError 429 where no further request may wait."""
        if len(self._queue) >= self._length:
            wait_s = len(self._queue) * self._metrics.mean_seconds() / self._engine.instances
            raise RequestError(
                429,
                f"{self._length} requests wait already; try again later",
                retry_after_s=max(1, min(60, round(wait_s))),
            )

    def submit(self, feed: Mapping[str, np.ndarray], names: Sequence[str]) -> Future[list[np.ndarray]]:
        """Queue a request; raises RequestError where it cannot be queued."""
        rows, key = 1, None
        if self._rows is not None:
            try:
                rows, key = self._rows.count(feed), self._rows.key(feed)
            except ValueError as error:
                raise bad(str(error)) from None
        call = Call(feed, tuple(names), rows, key)
        try:
            self._queue.put(call, self.check_room)
        except ClosedError:
            raise RequestError(503, "the server ends; ask another one") from None
        return call.done

    def close(self, timeout_s: float) -> bool:
        """Finish what waits, then end the threads; False where one still runs after the timeout."""
        self._queue.close()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self) -> None:
        while (calls := self._queue.next()) is not None:
            # Of a client that has left, nothing is computed.
            alive = [call for call in calls if call.done.set_running_or_notify_cancel()]
            now = time.perf_counter()
            for call in alive:
                self._metrics.queued(now - call.since)
            if alive:
                self._run(alive)

    def _fitting(self, waiting: Sequence[Call]) -> tuple[int, bool]:
        """How many calls from the front make one batch, and whether no further call could join it."""
        if self._rows is None:
            return 1, True
        first, count, rows = waiting[0], 0, 0
        for call in waiting:
            if count and (call.key != first.key or rows + call.rows > self._rows.most):
                return count, True
            count, rows = count + 1, rows + call.rows
        return count, rows >= self._rows.most

    def _run(self, calls: Sequence[Call]) -> None:
        start = time.perf_counter()
        try:
            if self._rows is None:
                results = [self._engine.infer(calls[0].feed, calls[0].names)]
            else:
                results = self._joined(self._rows, calls)
        except Exception as error:
            if len(calls) > 1:  # only one of them may be at fault
                for call in calls:
                    self._run([call])
                return
            calls[0].done.set_exception(_told(error))
            return
        self._metrics.computed(sum(call.rows for call in calls), time.perf_counter() - start)
        for call, result in zip(calls, results, strict=True):
            call.done.set_result(result)

    def _joined(self, rows: Rows, calls: Sequence[Call]) -> list[list[np.ndarray]]:
        names = list(dict.fromkeys(name for call in calls for name in call.names))
        made = self._engine.infer(rows.join([call.feed for call in calls]), names)
        parts = rows.cut(made, [call.rows for call in calls])
        return [
            [part[names.index(name)] for name in call.names]
            for call, part in zip(calls, parts, strict=True)
        ]


def _told(error: Exception) -> RequestError:
    """What the client may know: what is wrong with its request, but nothing of the inside."""
    if isinstance(error, BadInputError | ValueError):
        return bad(str(error))
    _log.error("a request failed", exc_info=error)
    return RequestError(500, "the model could not be run; the server's log says why")

"""Requests in a pipeline: each stage of a plan has a thread of its own, so a request's stage runs beside the next request's stage before.

Terms: a *stage* is some partitions that follow each other in a plan. An executor has the buffers of one request.

Invariants: requests go through the stages in the order in which they came. An executor is with one request from its first
stage to its last. A stage computes one request at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from collage.runtime.executor import Executor
from collage.runtime.turns import Callbacks, Turns


@dataclass(frozen=True)
class _Asked:
    """A request: the outputs that it wants, its inputs, and where the answer goes."""

    names: Sequence[str]
    feed: Mapping[str, np.ndarray]
    done: Future[list[np.ndarray]]


class Pipeline:
    """Requests to executors of one plan, which share its executables.

    Args:
        executors: of fixed shapes, each with buffers of its own; one more than there are stages keeps all stages busy.
        stages: how many partitions each stage has, in order.
    """

    def __init__(self, executors: Sequence[Executor], stages: Sequence[int]) -> None:
        self._turns, self._callbacks = Turns(executors), Callbacks()
        ends = [0, *itertools.accumulate(stages)]
        self._ranges = list(itertools.pairwise(ends))
        self._threads = [ThreadPoolExecutor(1, f"collage-stage-{i}") for i in range(len(stages))]

    def run(self, names: Sequence[str], feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Compute outputs and wait for them.

        Raises:
            ClosedError: after `close`.
            Exception: what a stage raises.
        """
        return self.submit(names, feed).result()

    def submit(self, names: Sequence[str], feed: Mapping[str, np.ndarray]) -> Future[list[np.ndarray]]:
        """Compute outputs in the threads of the stages.

        Raises:
            ClosedError: after `close`.
        """
        asked = _Asked(names, feed, self._callbacks.future())
        self._turns.ask(partial(self._enter, 0, asked))
        return asked.done

    def close(self) -> None:
        """Refuse further requests, and wait for those under way and waiting; may be called twice."""
        self._turns.close()
        for thread in self._threads:
            thread.shutdown()
        self._callbacks.wait()

    def end(self) -> None:
        """End the threads once they are done, without waiting."""
        for thread in self._threads:
            thread.shutdown(wait=False)

    def _enter(self, stage: int, asked: _Asked, executor: Executor) -> None:
        try:
            self._threads[stage].submit(self._compute, stage, asked, executor)
        except RuntimeError as error:  # Python is ending
            self._turns.give_back(executor)
            asked.done.set_exception(error)

    def _compute(self, stage: int, asked: _Asked, executor: Executor) -> None:
        self._callbacks.computes()
        is_last = stage + 1 == len(self._ranges)
        answer: list[np.ndarray] = []
        try:
            if stage == 0:
                if not asked.done.set_running_or_notify_cancel():
                    self._turns.give_back(executor)
                    return
                executor.feed(asked.feed)
            executor.run_steps(*self._ranges[stage])
            if is_last:
                answer = [executor.output(name) for name in asked.names]
        except BaseException as error:
            self._turns.give_back(executor)
            asked.done.set_exception(error)
            return
        if not is_last:
            self._enter(stage + 1, asked, executor)
            return
        # What waits for the future may close the pipeline.
        self._turns.give_back(executor)
        asked.done.set_result(answer)

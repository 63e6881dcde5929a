"""Ways to answer several clients at once: ours, sessions of ONNX Runtime, and OpenVINO's asynchronous requests.

Each opens a model and answers so many clients, each of which asks again as soon as it has its answer. It runs in a
process of its own, and its settings are its runtime's defaults but for what its name says.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collage.runtime.joined import joined

# How long a request waits for the next one of its batch.
_BATCH_DELAY_S = 0.002
Feed = Mapping[str, np.ndarray]
Load = Callable[[int, float], list[float]]
"""Answers so many clients for so many seconds; the microseconds of each request."""


@dataclass(frozen=True)
class Contender:
    """One way.

    Args:
        name: as tables show it.
        kind: `ours`, `onnxruntime` or `openvino`.
        instances: sessions or requests; 0 for what it chooses itself.
        threads: of each; 0 for what it chooses itself.
        path: the model or artifact.
        rows: how many requests a call computes, where the model has such a batch; 0 for one.
    """

    name: str
    kind: str
    path: Path
    instances: int = 0
    threads: int = 0
    rows: int = 0

    def open(self, feed: Feed) -> Load:
        """Load the model."""
        if self.kind == "ours":
            return _ours(self, feed)
        return _sessions(self, feed) if self.kind == "onnxruntime" else _asynchronous(self, feed)


def _ours(contender: Contender, feed: Feed) -> Load:
    import collage

    session = collage.load(
        contender.path,
        instances=contender.instances or "auto",
        threads=contender.threads or None,
    )
    return _by_threads(lambda: session.run(None, feed))


def _sessions(contender: Contender, feed: Feed) -> Load:
    """Sessions that clients take in turn; one with default settings is called by all of them at once."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if contender.threads:
        options.intra_op_num_threads = contender.threads

    def opened() -> Any:
        return onnxruntime.InferenceSession(
            str(contender.path), options, providers=["CPUExecutionProvider"]
        )

    if contender.rows:
        batches = Batches(opened(), contender.rows)
        return _by_threads(lambda: batches.ask(feed))
    if not contender.instances:
        only = opened()
        return _by_threads(lambda: only.run(None, feed))
    free: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(contender.instances):
        free.put(opened())

    def ask() -> None:
        session = free.get()
        try:
            session.run(None, feed)
        finally:
            free.put(session)

    return _by_threads(ask)


class Batches:
    """A session of ONNX Runtime whose calls compute the requests that wait, filled up to the model's batch."""

    def __init__(self, session: Any, rows: int) -> None:
        self._session, self._rows = session, rows
        self._waiting: queue.SimpleQueue[tuple[Feed, Future[list[np.ndarray]]]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def ask(self, feed: Feed) -> list[np.ndarray]:
        """The outputs of a request of one row."""
        answer: Future[list[np.ndarray]] = Future()
        self._waiting.put((feed, answer))
        return answer.result()

    def _serve(self) -> None:
        while True:
            asked = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(asked) < self._rows:
                    asked.append(self._waiting.get(timeout=_BATCH_DELAY_S))
            try:
                made = self._session.run(None, joined([feed for feed, _ in asked], self._rows))
            except Exception as error:
                for _, answer in asked:
                    answer.set_exception(error)
                continue
            for i, (_, answer) in enumerate(asked):
                answer.set_result([output[i : i + 1] for output in made])


def _asynchronous(contender: Contender, feed: Feed) -> Load:
    """OpenVINO's own way: the THROUGHPUT hint, and as many requests in flight as there are clients."""
    # Its telemetry runs in a forked copy of this process, which may hang.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    compiled = openvino.Core().compile_model(
        str(contender.path),
        "CPU",
        {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"},
    )

    queues: list[Any] = []  # kept, since one that ends waits for callbacks, which wait for Python

    def load(clients: int, seconds: float) -> list[float]:
        requests = openvino.AsyncInferQueue(compiled, clients)
        queues.append(requests)
        times: list[float] = []
        clock = time.perf_counter
        requests.set_callback(
            lambda request, begin: (
                times.append((clock() - begin) * 1e6),
                [np.array(tensor.data) for tensor in request.output_tensors],
            )
        )
        end = clock() + seconds
        while clock() < end or len(times) < 3 * clients:
            requests.start_async(dict(feed), clock())
        requests.wait_all()
        return times

    return load


def _by_threads(ask: Callable[[], object]) -> Load:
    def load(clients: int, seconds: float) -> list[float]:
        start = threading.Barrier(clients)
        clock = time.perf_counter

        def work() -> list[float]:
            own: list[float] = []
            start.wait()
            last = clock()
            end = last + seconds
            while last < end or len(own) < 3:
                ask()
                now = clock()
                own.append((now - last) * 1e6)
                last = now
            return own

        with ThreadPoolExecutor(clients) as pool:
            futures = [pool.submit(work) for _ in range(clients)]
            return [us for future in futures for us in future.result()]

    return load

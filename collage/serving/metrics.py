"""Numbers of one served model: for Prometheus at `/metrics`, and as the protocol's statistics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


class _Duration:
    """A count with a total time."""

    def __init__(self) -> None:
        self.count, self.ns = 0, 0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.ns += round(seconds * 1e9)

    def as_json(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


class Metrics:
    """The counters of one model, in a registry of its own; any thread may call."""

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._lock = threading.Lock()
        self._last_ms = 0
        self._rows = 0
        self._success, self._fail, self._queue, self._compute = (_Duration() for _ in range(4))
        self._batch_s: dict[int, _Duration] = {}

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Any:
            made = Histogram(name, text, ["model"], buckets=buckets, registry=self._registry)
            return made.labels(model)

        self._requests = Counter(
            "collage_model_requests",
            "Inference requests by HTTP status",
            ["model", "status"],
            registry=self._registry,
        )
        self._model = model
        self._request_s = histogram(
            "collage_model_request_seconds", "From the first byte of a request to the answer", _SECONDS
        )
        self._queue_s = histogram("collage_model_queue_seconds", "Time that a request waits", _SECONDS)
        self._compute_s = histogram(
            "collage_model_compute_seconds", "Time of one call of the model", _SECONDS
        )
        self._batch_rows = histogram("collage_model_batch_rows", "Rows of one call of the model", _ROWS)
        self._length = Gauge(
            "collage_model_queue_length", "Requests that wait", ["model"], registry=self._registry
        ).labels(model)
        self._open = Gauge(
            "collage_model_open_requests",
            "Requests that were not answered yet",
            ["model"],
            registry=self._registry,
        ).labels(model)

    def watch_queue(self, length: Callable[[], int]) -> None:
        """Let every scrape ask how many requests wait."""
        self._length.set_function(length)

    def watch_open(self, count: Callable[[], int]) -> None:
        """Let every scrape ask how many requests are open."""
        self._open.set_function(count)

    def answered(self, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(self._model, str(status)).inc()
        self._request_s.observe(seconds)
        with self._lock:
            (self._success if status == 200 else self._fail).add(seconds)
            if status == 200:
                self._last_ms = round(time.time() * 1000)

    def queued(self, seconds: float) -> None:
        """Count one request that leaves the queue."""
        self._queue_s.observe(seconds)
        with self._lock:
            self._queue.add(seconds)

    def computed(self, rows: int, seconds: float) -> None:
        """Count one call of the model."""
        self._compute_s.observe(seconds)
        self._batch_rows.observe(rows)
        with self._lock:
            self._rows += rows
            self._compute.add(seconds)
            self._batch_s.setdefault(rows, _Duration()).add(seconds)

    def mean_seconds(self) -> float:
        """The mean time of a call of the model so far."""
        return self._compute.ns / 1e9 / max(1, self._compute.count)

    def statistics(self, version: str) -> dict[str, Any]:
        """The statistics extension's answer; input and output times belong to the request's whole time."""
        none = _Duration().as_json()
        with self._lock:
            inference = {
                "success": self._success.as_json(),
                "fail": self._fail.as_json(),
                "queue": self._queue.as_json(),
                "compute_input": none,
                "compute_infer": self._compute.as_json(),
                "compute_output": none,
            }
            batches = [
                {"batch_size": rows, "compute_infer": spent.as_json()}
                for rows, spent in sorted(self._batch_s.items())
            ]
            stat = {
                "name": self._model,
                "version": version,
                "last_inference": self._last_ms,
                "inference_count": self._rows,
                "execution_count": self._compute.count,
                "inference_stats": inference,
                "batch_stats": batches,
            }
        return {"model_stats": [stat]}

    def text(self) -> bytes:
        """All numbers as Prometheus reads them."""
        return generate_latest(self._registry)

"""Prometheus metrics at `/metrics`: requests, jobs, the queue, measurements, events."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class _JobStates(Collector):
    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> list[Metric]:
        family = GaugeMetricFamily("collage_jobs", "Jobs by state", labels=["state"])
        for state, count in self._counts().items():
            family.add_metric([state], count)
        return [family]

    def describe(self) -> list[Metric]:
        # Without this, registering would already ask the database.
        return []


class Metrics:
    """The counters of one app, in a registry of its own so that several apps fit in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Histogram(
            "collage_http_request_seconds",
            "Time to answer a request, streams included",
            ["method", "route", "status"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.jobs_ended = Counter(
            "collage_jobs_ended", "Jobs that ended here, by state", ["state"], registry=self.registry
        )
        self.jobs_started = Counter(
            "collage_jobs_started",
            "Jobs whose process had loaded everything before (warm), or not (cold)",
            ["start"],
            registry=self.registry,
        )
        self.job_seconds = Histogram(
            "collage_job_seconds",
            "Time from the start of a job to its end",
            buckets=(1, 3, 10, 30, 100, 300, 1000, 3000),
            registry=self.registry,
        )
        self.candidates = Counter(
            "collage_candidates",
            "Unique candidates of finished jobs: measured, infeasible, or known from the database",
            ["outcome"],
            registry=self.registry,
        )
        self.event_streams = Gauge(
            "collage_event_streams", "Open streams of server-sent events", registry=self.registry
        )

    def watch_jobs(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """Let every scrape ask how many jobs there are in each state."""
        self.registry.register(_JobStates(counts))

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(method, route, str(status)).observe(seconds)

    def text(self) -> bytes:
        """All numbers as Prometheus reads them."""
        return generate_latest(self.registry)

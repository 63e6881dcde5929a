"""A measurement of requests that really run at once: what is asked of a process, and what it answers.

Terms: a *setting* is a plan with its number of instances and the threads of each. A *trial* is one measurement of a
setting, in a process of its own. Clients ask again as soon as they have an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from collage.timing.request import TimingRequest


@dataclass(frozen=True)
class TrialRequest:
    """A setting to be measured.

    Args:
        timing: its plan, alone, with samples, metric, and the threads of one request.
        instances: how many calls run at once.
        seconds: how long clients ask; each gets three answers at the least.
        rows: how many requests one call computes; the samples have so many rows.
        stages: of a pipeline, how many partitions each has.
        clients: so many ask at once at the least; each row of each instance has one in any case.
    """

    timing: TimingRequest
    instances: int
    seconds: float
    rows: int = 1
    stages: tuple[int, ...] = ()
    clients: int = 1


@dataclass(frozen=True)
class Trial:
    """What was found out about a setting.

    Args:
        throughput: requests per second.
        median_us: of a request's time.
        p99_us: 99th percentile of it.
        requests: how many there were.
        peak_rss_bytes: the most memory that the process had resident, from its start on.
        load_s: time to compile and verify all instances.
        error: the largest error over outputs and samples.
        failure: why it was not measured, or None.
    """

    throughput: float = 0.0
    median_us: float = 0.0
    p99_us: float = 0.0
    requests: int = 0
    peak_rss_bytes: int = 0
    load_s: float = 0.0
    error: float | None = None
    failure: str | None = None

"""What a tuning is for, and which of two measurements serves that better."""

from __future__ import annotations

import math
from dataclasses import dataclass

from collage.objective import gain, weights_of
from collage.objectives.trial import Trial

# So many that an instance always finds a request that waits.
CLIENTS_PER_CORE = 2


@dataclass(frozen=True)
class Goal:
    """An objective with its bound.

    Args:
        objective: what is to be as good as possible, or weights of several (`collage.objective`).
        p99_us: bound on the 99th percentile of a request's time; None for no bound.
        median_us: bound on its median.
    """

    objective: str
    p99_us: float | None = None
    median_us: float | None = None

    @property
    def counts_memory(self) -> bool:
        """True when memory is among what counts."""
        return "memory" in weights_of(self.objective)

    def clients(self, cores: int) -> int:
        """How many ask at once in a trial: more than are served where only their number counts.

        Requests that wait would add to a latency.
        """
        counts = weights_of(self.objective)
        bounded = self.p99_us is not None or self.median_us is not None
        if bounded or "latency" in counts or "throughput" not in counts:
            return 1
        return CLIENTS_PER_CORE * cores

    def value(self, trial: Trial) -> float:
        """What is to be as large as possible; the weighted geometric mean where several count."""
        return gain(
            self.objective,
            median_us=trial.median_us,
            throughput_per_s=trial.throughput,
            peak_rss_bytes=trial.peak_rss_bytes,
        )

    def excess(self, trial: Trial) -> float:
        """How many times a measurement exceeds the bound; at most 1 where it keeps it."""
        shares = [0.0]
        if self.p99_us is not None:
            shares.append(trial.p99_us / self.p99_us)
        if self.median_us is not None:
            shares.append(trial.median_us / self.median_us)
        return max(shares)

    def order(self, trial: Trial) -> tuple[float, float]:
        """Sorts measurements, the best first: those that keep the bound by value, then the others by excess."""
        excess = self.excess(trial)
        return (0.0, -self.value(trial)) if excess <= 1.0 else (excess, math.inf)

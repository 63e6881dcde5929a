"""What running a candidate costs: measured, infeasible or unknown, and never a bare number.

Invariant: only `Measured` carries a time.

Source: TVM v0.18 `src/relay/collage/cost.h`, where the same three cases share one double.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """A measured latency."""

    latency_us: float  # median time of one call in microseconds
    spread_us: float = 0.0  # half the width of the 95 % confidence interval of that median
    samples: int = 1  # how many timed calls the median stands on


@dataclass(frozen=True)
class Infeasible:
    """The candidate cannot run on this target, with the reason in one sentence."""

    reason: str


@dataclass(frozen=True)
class Unknown:
    """Not measured yet."""


Cost = Measured | Infeasible | Unknown

"""What running a candidate costs: measured, infeasible or unknown, and never a bare number.

Invariant: only `Measured` carries a time that somebody measured. `Unknown` may carry an optimistic
bound, which search uses to decide what to measure next and which is never shown as a cost.

Source: TVM v0.18 `src/relay/collage/cost.h`, where the same three cases share one double.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """A measured latency.

    Args:
        latency_us: median time of one call in microseconds.
        spread_us: half the width of the 95 % confidence interval of that median.
        samples: how many timed calls the median stands on.
    """

    latency_us: float
    spread_us: float = 0.0
    samples: int = 1


@dataclass(frozen=True)
class Infeasible:
    """The candidate cannot run on this target, with the reason in one sentence."""

    reason: str


@dataclass(frozen=True)
class Unknown:
    """Not measured yet.

    Args:
        bound_us: an optimistic estimate in microseconds (what it may cost at best).
    """

    bound_us: float = 0.0


Cost = Measured | Infeasible | Unknown

"""Latency as a function of shape: straight lines between measured points, by the work that a shape is.

Invariant: a fit says what to measure next. It is never a cost, and it is trusted only where a point that it did not
see is near what it says.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

# A fit that errs more at a point that it did not see is not trusted.
MOST_ERROR = 0.10
_LEAST_POINTS = 3


@dataclass(frozen=True)
class ShapeFit:
    """A piecewise linear function.

    Args:
        points: work and microseconds, by work, each work once.
    """

    points: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, measured: Iterable[tuple[float, float]]) -> ShapeFit:
        """The fit through measured points; of several at one work the fastest counts."""
        best: dict[float, float] = {}
        for work, us in measured:
            best[work] = min(us, best.get(work, us))
        return cls(tuple(sorted(best.items())))

    def at(self, work: float) -> float | None:
        """Microseconds at some work; beyond the ends the last line goes on. None with fewer than two points."""
        if len(self.points) < 2:
            return None
        place = bisect.bisect_left(self.points, (work,))
        right = min(max(place, 1), len(self.points) - 1)
        (low, low_us), (high, high_us) = self.points[right - 1], self.points[right]
        us = low_us + (work - low) / (high - low) * (high_us - low_us)
        return max(us, 0.0)

    @property
    def held_out_error(self) -> float | None:
        """The largest relative error at an inner point, of the fit through the others; None without an inner point."""
        errors = []
        for i in range(1, len(self.points) - 1):
            work, us = self.points[i]
            said = ShapeFit(self.points[:i] + self.points[i + 1 :]).at(work)
            errors.append(abs((said or 0.0) - us) / us)
        return max(errors, default=None)

    def expected_us(self, work: float) -> float | None:
        """Microseconds at some work; None beyond the ends, or where the fit is not trusted."""
        if not self.is_trusted or not self.points[0][0] <= work <= self.points[-1][0]:
            return None
        return self.at(work)

    @property
    def is_trusted(self) -> bool:
        """Whether it was checked, and errs little."""
        error = self.held_out_error
        return len(self.points) >= _LEAST_POINTS and error is not None and error <= MOST_ERROR

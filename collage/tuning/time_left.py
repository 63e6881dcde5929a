"""What a time limit leaves for the steps of a range of sizes, and which of them did not fit.

Terms: time is *kept* for what the artifact needs, which is verifying its plans and writing it. All other steps must end
before that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from collage.backends.sandbox.run import ChildLimits
from collage.deadline import Deadline

# A child gets so long at the least, and at the most where there is no limit.
_LEAST_S, _MOST_S = 5.0, 300.0


class TimeLeft:
    """The time of one run.

    Args:
        begin_s: when it began, by the clock.
        limit_s: the caller's limit in seconds; None for none.
        say: is told what is left out.
        clock: tells the time.
    """

    def __init__(
        self,
        begin_s: float,
        limit_s: float | None,
        say: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_s, self._say, self._clock = limit_s, say, clock
        self._end_s = (
            math.inf
            if limit_s is None
            else Deadline.of(begin_s=begin_s, limit_s=limit_s, is_strict=True).end_s
        )
        self._kept_s = 0.0
        self._left_out: dict[str, None] = {}

    def keep(self, seconds: float) -> None:
        """Keep so many seconds for the end of the run, in place of those before."""
        self._kept_s = seconds

    @property
    def seconds(self) -> float:
        """Until what is kept begins; never negative, infinite without a limit."""
        return max(0.0, self._end_s - self._kept_s - self._clock())

    def fits(self, seconds: float) -> bool:
        """True when a step of so many seconds ends in time."""
        return seconds < self.seconds

    def leaves_out(self, what: str, seconds: float) -> bool:
        """True when a step of so many seconds does not end in time; then it is told."""
        if self.fits(seconds):
            return False
        self.tell(what)
        return True

    def tell(self, what: str) -> None:
        """Tell that something is left out for lack of time."""
        if self._limit_s is None:
            return
        self._left_out[what] = None
        self._say(f"the time is up: {what} left out")

    @property
    def limits(self) -> ChildLimits:
        """Of a child without whose result the run goes on."""
        return ChildLimits(timeout_s=min(_MOST_S, max(_LEAST_S, self.seconds)))

    @property
    def warnings(self) -> list[str]:
        """What was left out, in one line."""
        if not self._left_out:
            return []
        return [
            f"for all sizes the time limit of {self._limit_s:g} s left out: {', '.join(self._left_out)}; allow more with "
            "--time-limit"
        ]


NO_LIMIT = TimeLeft(0.0, None)

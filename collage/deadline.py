"""Until when a tuning run looks for plans, compares them, confirms the winner, and writes it.

Terms: the *limit* is what the caller allows. The *end* is somewhat later: a run that looked for plans until the limit
still has to confirm and write the best of them. What that takes is reserved ahead, from what was measured so far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

# A limit that the caller set is exceeded by such a share of it and so many seconds at the most (docs/tune.md says a
# little more, since estimates are never exact).
_GRACE_SHARE, _GRACE_S = 0.2, 8.0
_PROMISED_SHARE, _PROMISED_S = 1.25, 10.0
_LEAST_S = 5.0
# Another tuner that makes the same search is waited for until so much of that is over; the rest is for a plan of one's own.
_WAITING_SHARE = 0.5
# Where the caller set no limit, a first plan is worth so many times the usual one.
_PATIENCE = 4


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """The ends of the stages of a run, in order, as its clock tells them.

    Args:
        search_s: nothing new is looked for from then on.
        compare_s: comparisons that look for something faster are over by then.
        confirm_s: comparisons that confirm the winner are over by then.
        end_s: the artifact is written by then.
        give_up_s: a run that knows no plan at all ends with an error then.
        clock: tells the time.
    """

    search_s: float = math.inf
    compare_s: float = math.inf
    confirm_s: float = math.inf
    end_s: float = math.inf
    give_up_s: float = math.inf
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def of(
        cls,
        *,
        begin_s: float,
        limit_s: float,
        is_strict: bool,
        waited_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> Deadline:
        """The deadline of a run before anything is reserved.

        Args:
            begin_s: when it began.
            limit_s: seconds for looking for plans.
            is_strict: the caller set that limit. Else the winner may be confirmed for as long again.
            waited_s: how long another tuner was waited for, which is no looking for plans. It moves no end that the caller
                set.
            clock: tells the time.
        """
        if not is_strict:
            begin_s += waited_s
        end_s = writing_end_s(begin_s, limit_s)
        if not is_strict:
            end_s = begin_s + limit_s + max(_GRACE_S, limit_s)
        search_s = min(begin_s + limit_s + (waited_s if is_strict else 0.0), end_s)
        give_up_s = end_s if is_strict else begin_s + _PATIENCE * limit_s
        return cls(
            search_s=search_s,
            compare_s=end_s,
            confirm_s=end_s,
            end_s=end_s,
            give_up_s=give_up_s,
            clock=clock,
        )

    @property
    def left_s(self) -> float:
        """Seconds for looking for plans; negative when that time is up."""
        return self.search_s - self.clock()

    @property
    def compare_left_s(self) -> float:
        """Seconds for comparing plans before the winner has to be confirmed; never negative."""
        return max(0.0, self.compare_s - self.clock())

    @property
    def end_left_s(self) -> float:
        """Seconds until the artifact should be written; never negative."""
        return max(0.0, self.end_s - self.clock())

    @property
    def has_passed(self) -> bool:
        """True when nothing new is to be looked for."""
        return self.left_s <= 0

    def reserving(self, *, confirm_s: float, emit_s: float) -> Deadline:
        """The same with seconds kept for confirming the winner and for writing it."""
        last_s = self.end_s - emit_s
        compare_s = last_s - confirm_s
        return replace(
            self, search_s=min(self.search_s, compare_s), compare_s=compare_s, confirm_s=last_s
        )

    def extended_to(self, search_s: float) -> Deadline:
        """The same with a search until then, where that is later."""
        return replace(self, search_s=max(self.search_s, min(search_s, self.compare_s)))

    def fits(self, seconds: float) -> bool:
        """True when something new may be looked for, and a comparison of so many seconds ends in time."""
        return not self.has_passed and self.clock() + seconds <= self.compare_s

    def fits_confirming(self, seconds: float) -> bool:
        """True when a comparison of so many seconds leaves time for writing the winner."""
        return self.clock() + seconds <= self.confirm_s


def waiting_end_s(begin_s: float, limit_s: float) -> float:
    """Until when another tuner that makes the same search is waited for.

    Args:
        begin_s: when the run began.
        limit_s: the caller's limit.
    """
    return begin_s + limit_s + _WAITING_SHARE * _grace_s(limit_s)


def preparing_end_s(begin_s: float, limit_s: float) -> float:
    """Until when the model is read and its first reference values are computed; the rest is for measuring one plan.

    Args:
        begin_s: when the run began.
        limit_s: the caller's limit.
    """
    return max(waiting_end_s(begin_s, limit_s), begin_s + _grace_s(limit_s))


def writing_end_s(begin_s: float, limit_s: float) -> float:
    """Until when the artifact is written.

    Args:
        begin_s: when the run began.
        limit_s: the caller's limit.
    """
    return begin_s + limit_s + _grace_s(limit_s)


def seconds_until(until_s: float, most_s: float) -> float:
    """Seconds that a step may take which is to end by a time of `time.monotonic`.

    Args:
        until_s: that time; where it is up, some seconds are left for a step that cannot be left out.
        most_s: the most that it takes without a limit.
    """
    return min(most_s, max(_LEAST_S, until_s - time.monotonic()))


def is_kept(seconds: float, limit_s: float) -> bool:
    """True when a run of so many seconds keeps what is promised of the caller's limit."""
    return seconds <= _PROMISED_SHARE * limit_s + _PROMISED_S


def _grace_s(limit_s: float) -> float:
    """By how many seconds a limit that the caller set may be exceeded."""
    return _GRACE_SHARE * limit_s + _GRACE_S


NO_DEADLINE = Deadline()

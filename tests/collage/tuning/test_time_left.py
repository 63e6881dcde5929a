"""What a time limit leaves for the steps of a range of sizes, by a stated clock."""

from __future__ import annotations

import math

from collage.tuning.time_left import NO_LIMIT, TimeLeft


def test_steps_end_before_what_is_kept() -> None:
    now = [100.0]
    told: list[str] = []
    left = TimeLeft(100.0, 30.0, told.append, clock=lambda: now[0])
    assert 30.0 < left.seconds < 1.25 * 30.0 + 10.0
    left.keep(left.seconds - 5.0)
    assert left.fits(4.0) and not left.fits(6.0)
    assert not left.leaves_out("padding", 4.0) and not left.warnings
    now[0] += 2.0
    assert left.leaves_out("padding", 4.0) and left.leaves_out("padding", 4.0)
    left.tell("the memory of processes")
    assert left.warnings == [
        "for all sizes the time limit of 30 s left out: padding, the memory of processes; allow more with --time-limit"
    ]
    assert told[0] == "the time is up: padding left out"
    now[0] += 1e6
    assert left.seconds == 0.0 and left.limits.timeout_s == 5.0


def test_without_a_limit_all_fits() -> None:
    NO_LIMIT.keep(1e9)
    assert NO_LIMIT.fits(1e12) and NO_LIMIT.seconds == math.inf
    NO_LIMIT.tell("nothing")
    assert not NO_LIMIT.warnings and NO_LIMIT.limits.timeout_s == 300.0

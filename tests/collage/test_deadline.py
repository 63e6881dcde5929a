"""A limit and what it leaves for each stage, with a clock that stands where a test puts it."""

from __future__ import annotations

import time

import pytest

import collage.deadline
from collage.deadline import (
    NO_DEADLINE,
    Deadline,
    is_kept,
    preparing_end_s,
    seconds_until,
    waiting_end_s,
)


def _at(now_s: float, limit_s: float = 100.0, is_strict: bool = True) -> Deadline:
    return Deadline.of(begin_s=0.0, limit_s=limit_s, is_strict=is_strict, clock=lambda: now_s)


@pytest.mark.parametrize("limit_s", [1.0, 20.0, 40.0, 100.0, 600.0])
def test_end_of_a_given_limit_stays_within_what_is_promised(limit_s: float) -> None:
    assert limit_s < _at(0.0, limit_s).end_s <= 1.25 * limit_s + 10


def test_default_limit_leaves_as_long_again_for_confirming() -> None:
    assert _at(0.0, 150.0, is_strict=False).end_s == 300.0


@pytest.mark.parametrize("confirm_s", [0.0, 10.0, 60.0, 500.0])
@pytest.mark.parametrize("emit_s", [0.0, 3.0, 40.0])
def test_reserved_stages_come_in_order(confirm_s: float, emit_s: float) -> None:
    before = _at(0.0)
    after = before.reserving(confirm_s=confirm_s, emit_s=emit_s)
    assert after.search_s <= after.compare_s <= after.confirm_s <= after.end_s == before.end_s
    assert after.search_s <= before.search_s
    assert after.end_s - after.confirm_s == emit_s
    assert after.confirm_s - after.compare_s == confirm_s


def test_little_to_reserve_takes_nothing_from_the_search() -> None:
    assert _at(0.0).reserving(confirm_s=10.0, emit_s=3.0).search_s == 100.0
    assert _at(0.0).reserving(confirm_s=60.0, emit_s=3.0).search_s == 65.0


@pytest.mark.parametrize(
    ("now_s", "seconds", "fits", "confirms"),
    [
        (50.0, 40.0, True, True),
        # It would end while the winner is to be confirmed.
        (90.0, 30.0, False, True),
        # Nothing new is begun after the limit, however short it is.
        (101.0, 1.0, False, True),
        (110.0, 20.0, False, False),
    ],
)
def test_comparison_fits_when_it_ends_in_time(
    now_s: float, seconds: float, fits: bool, confirms: bool
) -> None:
    deadline = _at(now_s).reserving(confirm_s=10.0, emit_s=3.0)
    assert (deadline.fits(seconds), deadline.fits_confirming(seconds)) == (fits, confirms)


def test_time_that_is_left_is_never_negative_but_of_the_search() -> None:
    late = _at(500.0)
    assert (late.compare_left_s, late.end_left_s) == (0.0, 0.0)
    assert late.left_s == -400.0 and late.has_passed


def test_extended_search_never_takes_what_is_reserved() -> None:
    deadline = _at(95.0).reserving(confirm_s=10.0, emit_s=3.0)
    assert deadline.extended_to(110.0).search_s == 110.0
    assert deadline.extended_to(200.0).search_s == deadline.compare_s
    assert deadline.extended_to(50.0).search_s == deadline.search_s


def test_without_a_limit_everything_fits() -> None:
    assert NO_DEADLINE.fits(1e9) and NO_DEADLINE.fits_confirming(1e9) and not NO_DEADLINE.has_passed


@pytest.mark.parametrize("waited_s", [0.0, 30.0, 110.0, 1e3])
def test_waiting_for_another_tuner_moves_no_end_that_the_caller_set(waited_s: float) -> None:
    without = _at(0.0)
    after = Deadline.of(begin_s=0.0, limit_s=100.0, is_strict=True, waited_s=waited_s)
    assert after.end_s == without.end_s and after.give_up_s == without.give_up_s
    # Plans are looked for as long as without the wait, as far as that fits.
    assert after.search_s == min(100.0 + waited_s, after.end_s)
    usual = Deadline.of(begin_s=0.0, limit_s=100.0, is_strict=False, waited_s=waited_s)
    assert usual.search_s == 100.0 + waited_s


@pytest.mark.parametrize("limit_s", [1.0, 40.0, 600.0])
def test_waiting_ends_with_time_left_for_a_plan_of_its_own(limit_s: float) -> None:
    assert limit_s < waiting_end_s(0.0, limit_s) <= _at(0.0, limit_s).end_s - 4


@pytest.mark.parametrize("limit_s", [0.01, 1.0, 8.0, 20.0, 600.0])
def test_reading_and_the_reference_end_within_what_is_promised(limit_s: float) -> None:
    assert limit_s + 4 < preparing_end_s(0.0, limit_s) <= _at(0.0, limit_s).end_s
    # A small model is read on a busy machine, however short the limit.
    assert preparing_end_s(0.0, limit_s) >= 8.0


def test_a_step_ends_by_a_time_and_has_some_seconds_where_that_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    assert seconds_until(130.0, 600.0) == 30.0
    assert seconds_until(900.0, 600.0) == seconds_until(float("inf"), 600.0) == 600.0
    assert 0 < seconds_until(90.0, 600.0) == collage.deadline._LEAST_S < 10


def test_a_limit_is_kept_up_to_what_is_promised() -> None:
    assert is_kept(35.0, 20.0) and not is_kept(35.1, 20.0)

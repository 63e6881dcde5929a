"""What a time limit leaves out once plans are chosen, and what it never does."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import cast

import pytest

from collage.backends.sandbox.run import ChildFailed
from collage.events import Event
from collage.runner import Runner
from collage.tuning.closing import Closing
from collage.tuning.run import Run


def waits(seconds: float) -> str:
    """Something that takes so long; called in a child."""
    time.sleep(seconds)
    return "done"


def fails() -> None:
    """Called in a child."""
    raise ValueError("it is stated")


def _closing(left_s: float, reserved_s: float = 0.0) -> tuple[Closing, list[Event]]:
    told: list[Event] = []
    run = SimpleNamespace(
        runner=Runner(),
        cancel=None,
        listener=told.append,
        limit_s=20.0,
        written_by_s=time.monotonic() + left_s,
    )
    return Closing(cast(Run, run), reserved_s), told


def test_a_step_that_there_is_time_for_is_made() -> None:
    closing, told = _closing(math.inf)
    assert closing.attempt("memory", waits, 0.0) == "done"
    assert not told and not closing.warnings()


def test_a_step_that_does_not_fit_is_left_out_and_told_once() -> None:
    closing, told = _closing(60.0, reserved_s=59.0)
    assert closing.attempt("memory", waits, 0.0) is None
    assert closing.attempt("memory", waits, 0.0) is None
    assert closing.attempt("padding", waits, 0.0) is None
    assert [event.message for event in told] == [
        "the time is up: memory left out",
        "the time is up: padding left out",
    ]
    (said,) = closing.warnings()
    assert "the time limit of 20 s left out: memory, padding;" in said
    assert closing.left_out("memory") and not closing.left_out("proofs")


def test_a_step_that_takes_too_long_is_cut_and_leaves_time_for_others() -> None:
    closing, _ = _closing(5.0)
    begin_s = time.monotonic()
    assert closing.attempt("memory", waits, 60.0) is None
    assert time.monotonic() - begin_s < 4.5
    assert closing.left_out("memory")


def test_a_step_that_is_needed_is_made_however_late() -> None:
    closing, told = _closing(-5.0)
    assert closing.attempt("memory", waits, 0.0, needed=True) == "done"
    assert not told


def test_a_failure_is_no_lack_of_time() -> None:
    closing, _ = _closing(60.0)
    with pytest.raises(ChildFailed, match="it is stated"):
        closing.attempt("memory", fails)
    assert not closing.left_out("memory")


def test_time_for_a_proof_is_set_apart_while_there_is_some() -> None:
    closing, _ = _closing(60.0, reserved_s=10.0)
    assert closing.reserve(30.0, "memory") and closing.reserved_s == 40.0
    assert not closing.reserve(30.0, "memory") and closing.reserved_s == 40.0
    assert closing.left_out("memory")

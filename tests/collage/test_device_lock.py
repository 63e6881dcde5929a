"""The slot of a machine's device: one at a time, and what happens where the time for waiting is up."""

from __future__ import annotations

import fcntl
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx.parser
import pytest

from collage.backends.measurement.measure import Measurement, MeasureRequest
from collage.device_lock import device_slot, slot_path
from collage.events import Event
from collage.partitioner.cost import Measured
from collage.partitioner.errors import CancelledError
from collage.runner import Runner
from tests.tuning import tuned

# Starting processes and reading a small model take so long on a busy machine.
_SLACK_S = 5.0


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another tuner holds the slot all the time."""
    monkeypatch.setenv("COLLAGE_RUNTIME_DIR", str(tmp_path / "runtime"))
    with slot_path().open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_free_slot_is_held_however_late_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_RUNTIME_DIR", str(tmp_path))
    with device_slot(until_s=-math.inf) as held:
        assert held


@pytest.mark.usefixtures("taken")
def test_waiting_for_the_slot_ends_when_the_time_is_up() -> None:
    begin_s = time.monotonic()
    with device_slot(until_s=begin_s + 0.2) as held:
        assert not held and time.monotonic() >= begin_s + 0.2


@pytest.mark.usefixtures("taken")
def test_waiting_for_the_slot_ends_with_a_cancel() -> None:
    cancel = threading.Event()
    threading.Timer(0.1, cancel.set).start()
    with pytest.raises(CancelledError), device_slot(cancel):
        raise AssertionError("it was taken")


@pytest.mark.usefixtures("taken")
def test_a_runner_goes_on_beside_another_tuner_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    plain = Runner()
    runner = plain.waiting_until(0.0, said.append)
    assert not runner.about_waiting()
    for _ in range(2):
        with runner.alone(None) as is_alone:
            assert not is_alone
    assert len(said) == 1 and len(runner.about_waiting()) == 1 and not plain.about_waiting()
    # What was measured then is for no other run.
    whole = Measurement(Measured(1.0, 0.1))
    monkeypatch.setattr("collage.runner.measure", lambda *_: whole)
    request: MeasureRequest = None  # type: ignore[assignment]
    assert runner.measure(request, None).cut_short


@pytest.mark.slow
@pytest.mark.usefixtures("taken")
def test_a_tuning_that_never_gets_the_device_ends_in_its_limit(tmp_path: Path) -> None:
    events: list[Event] = []
    begin_s = time.monotonic()
    made = tuned(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Exp(x) }'
        ),
        ["onnxruntime", "openvino"],
        tmp_path,
        time_limit_s=4.0,
        on_event=events.append,
    )
    assert time.monotonic() - begin_s <= 1.25 * 4 + 10 + _SLACK_S
    assert [e.message for e in events if "measuring beside it" in e.message]
    assert any("another tuner measured" in text for text in made.report["warnings"])
    assert made.report["partitions"]

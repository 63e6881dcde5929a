"""What people see while a tuning runs."""

from __future__ import annotations

import pytest

from collage.cli.progress import TuningProgress, progress
from collage.events import Event


def _whole(target: str, latency_us: float | None) -> Event:
    data = {"target": target, "nodes": 30, "latency_us": latency_us}
    return Event("measure", f"{target} on 30 nodes", data=data)


def _part(target: str) -> Event:
    return Event("measure", "a part", data={"target": target, "nodes": 3, "latency_us": 1.0})


def _timed(plan: str, targets: list[str], ratio: float | None, latency_us: float | None) -> Event:
    partitions = 1 if plan.startswith("single") else 2
    data = {"plan": plan, "partitions": partitions, "targets": targets, "ratio": ratio}
    return Event("end_to_end", plan, data={**data, "latency_us": latency_us})


RUN = [
    Event("ingest", "reading the model"),
    Event("candidates", "enumerating candidates"),
    Event("measure", "measuring among 90 candidates"),
    Event("reference", "computing 30 reference values"),
    _whole("onnxruntime", 9000.0),
    _whole("openvino", 5000.0),
    _whole("mnn", None),
    Event("end_to_end", "timing the single targets in turn"),
    _timed("single openvino", ["openvino"], 1.0, 5100.0),
    _timed("single onnxruntime", ["onnxruntime"], 1.9, 9100.0),
    Event("measure", "searching"),
    Event("search", "best known plan", data={"unknown": 4}),
    _part("mnn"),
    Event("end_to_end", "timing whole plans in turn"),
    _timed("single openvino", ["openvino"], 1.0, 6000.0),
    _timed("searched 1", ["mnn", "openvino"], 0.8, 4000.0),
    _timed("searched 2", ["mnn", "openvino"], 1.2, 7000.0),
    _timed("searched 3", ["mnn", "openvino"], None, None),
    Event("emit", "writing the artifact"),
    Event("done", "searched 1 wins"),
]


def _described(events: list[Event]) -> str:
    now = TuningProgress()
    for event in events:
        now.update(event)
    return now.describe()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "step 1 of 6: reading the model"),
        (2, "step 1 of 6: reading the model"),
        (4, "step 2 of 6: measuring the whole model on each target"),
        (7, "step 2 of 6: measuring the whole model on each target · best so far openvino, 5 ms"),
        (8, "step 3 of 6: timing first plans · best so far openvino, 5 ms"),
        (10, "step 3 of 6: timing first plans · best so far openvino, 5.1 ms"),
        (13, "step 4 of 6: searching · 4 measured, 3 left · best so far openvino, 5.1 ms"),
        (18, "step 5 of 6: timing the best plans · best so far 2 partitions (mnn, openvino), 4.8 ms"),
        (20, "step 6 of 6: writing the artifact · best so far 2 partitions (mnn, openvino), 4.8 ms"),
    ],
)
def test_line_tells_step_and_best_so_far(count: int, text: str) -> None:
    assert _described(RUN[:count]) == text


def test_step_never_goes_back() -> None:
    assert _described([*RUN[:18], _part("mnn"), Event("search", "again")]).startswith("step 5 of 6")


def test_waiting_is_told_until_the_next_event() -> None:
    waits = Event("waiting", "no worker has mnn")
    assert _described([waits]) == "no worker has mnn"
    assert _described([waits, RUN[0]]).startswith("step 1 of 6")


def test_known_result_goes_from_reading_to_writing() -> None:
    assert _described([*RUN[:2], *RUN[-2:]]) == "step 6 of 6: writing the artifact"


def test_without_a_terminal_each_step_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as listener:
        for event in [Event("queued", "job is queued"), Event("running", "job is running"), *RUN]:
            listener(event)
    told = capsys.readouterr().err.splitlines()
    assert "job is queued" in told[0] and len(told) == 7
    assert all(len(line) < 100 for line in told)


def test_verbose_tells_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(verbose=True) as listener:
        for event in RUN:
            listener(event)
    told = capsys.readouterr().err.splitlines()
    assert told == [f"{event.stage}: {event.message}" for event in RUN]


def test_seconds_left_count_down_between_events_to_zero() -> None:
    now_s = [100.0]
    line = TuningProgress(lambda: now_s[0])
    line.update(Event("measure", "measuring", share_done=0.25, remaining_s=30.0))
    assert line.describe().endswith(" · 25%, at most 30 s left")
    now_s[0] = 110.0
    assert line.describe().endswith(" · 25%, at most 20 s left")
    now_s[0] = 500.0
    assert line.describe().endswith(" · 25%, at most 0 s left")

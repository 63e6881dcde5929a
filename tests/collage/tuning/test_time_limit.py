"""What a short limit leaves of a tuning of a slow model: each target's first timing, and what did not fit, said."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

import collage.runner
from benchmarks.support.zero_model import zero_model
from collage.backends.measurement.measure import Measurement, MeasureRequest, measure
from collage.events import Event
from collage.partitioner.errors import NoPlanError, OutOfTimeError
from tests.tuning import tuned

TARGETS = ("onnxruntime", "openvino")
_WIDTH, _SIDE = 64, 256


def _slow_model() -> onnx.ModelProto:
    """Convolutions that take some tenths of a second on two cores."""
    weights = f"float[{_WIDTH},{_WIDTH},3,3] w = {{{', '.join(['0.01'] * (_WIDTH * _WIDTH * 9))}}}"
    body = "  ".join(f"v{i + 1} = Conv<pads = [1,1,1,1]>(v{i}, w)" for i in range(6))
    shape = f"1,{_WIDTH},{_SIDE},{_SIDE}"
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 17]>
        g (float[{shape}] v0) => (float[{shape}] v6) <{weights}> {{ {body} }}"""
    )


@pytest.mark.slow
def test_a_short_limit_leaves_out_the_search_and_says_so(tmp_path: Path) -> None:
    events: list[Event] = []
    artifact = tuned(
        _slow_model(), TARGETS, tmp_path, time_limit_s=1.0, on_event=events.append, threads=1
    )
    report = artifact.report
    (left_out,) = [w for w in report["warnings"] if w.startswith("the time limit of 1 s left out:")]
    assert "the search" in left_out
    assert not any(event.stage == "search" for event in events)
    # What nothing else says has begun on each target that there was time for, before any has its blocks.
    nodes = [e.data["nodes"] for e in events if e.stage == "measure" and "nodes" in e.data]
    assert set(nodes) == {6}
    shares = [event.share_done for event in events if event.share_done is not None]
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert all(event.remaining_s is None or event.remaining_s >= 0 for event in events)


@pytest.mark.slow
def test_a_long_limit_times_each_target_before_anything_else(tmp_path: Path) -> None:
    events: list[Event] = []
    artifact = tuned(
        _slow_model(), TARGETS, tmp_path, time_limit_s=40.0, on_event=events.append, threads=1
    )
    measured = [e.data for e in events if e.stage == "measure" and "nodes" in e.data]
    assert [data["target"] for data in measured[:2]] == list(TARGETS)
    assert [data["nodes"] for data in measured[:2]] == [6, 6]
    assert all("latency_us" in baseline for baseline in artifact.report["baselines"])


@pytest.mark.slow
def test_a_search_that_finds_no_plan_ends_with_the_reasons_of_targets(tmp_path: Path) -> None:
    """Each region is wrong, and each takes a while."""
    body = "  ".join(f"v{i + 1} = Exp(v{i})" for i in range(60))
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 17]> g (float[4] x) => (float[4] v60) {{
        v0 = Tanh(x)  {body.replace("Exp", "Cos")} }}"""
    )
    targets = [f"null -latency_us={200_000 + i}" for i in range(3)]
    begin_s = time.monotonic()
    with pytest.raises(NoPlanError, match=r"--time-limit.*null -latency_us=200000: wrong result"):
        tuned(model, targets, tmp_path, time_limit_s=2.0)
    assert time.monotonic() - begin_s < 60


@pytest.mark.slow
def test_time_left_goes_to_untimed_targets_before_a_search_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One target is far ahead of another one, and the third needs more than its first share of the time."""
    fast, other, late = (
        "null -latency_us=2",
        "onnxruntime -threads=1",
        "simulated -precision=f32 -speedup=0.2",
    )
    tries: list[str] = []

    def slow_at_first(request: MeasureRequest, *more: Any) -> Measurement:
        tries.append(request.target.backend)
        if tries.count("simulated") < 3 and tries[-1] == "simulated":
            raise OutOfTimeError("it is stated")
        return measure(request, *more)

    monkeypatch.setattr(collage.runner, "measure", slow_at_first)
    said: list[str] = []
    artifact = tuned(
        onnx.load_from_string(zero_model()),
        (fast, other, late),
        tmp_path,
        time_limit_s=30.0,
        on_event=lambda event: said.append(event.message),
    )
    assert tries.count("simulated") >= 3
    assert all("latency_us" in baseline for baseline in artifact.report["baselines"]), said
    assert not any("time was up" in warning for warning in artifact.report["warnings"])
    assert any("ended early" in warning for warning in artifact.report["warnings"]), said

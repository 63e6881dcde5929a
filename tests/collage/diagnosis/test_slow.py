"""Regions in which a target is slow are found, timed alone and in place, and made reproducible."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import onnx
import pytest

from collage.diagnosis.diagnose import diagnose
from collage.diagnosis.request import DiagnoseRequest
from collage.events import Event
from collage.options import TuneOptions
from collage.partitioner.errors import BadInputError, CancelledError
from collage.partitioner.target import Target
from tests.backends import planted
from tests.collage.diagnosis.conftest import long_model
from tests.collage.environments.wrappers import interpreter

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("planted_backend")]


def speed(folder: Path, target: str, nodes: int = 60, **more: Any) -> dict[str, Any]:
    onnx.save(long_model(nodes), folder / "m.onnx")
    request = DiagnoseRequest(
        source=folder / "m.onnx",
        target=Target.parse(target),
        output=folder / "found",
        options=TuneOptions(threads=1),
        **more,
    )
    found: dict[str, Any] = diagnose(request)["speed"]
    return found


def test_a_slow_node_is_found_and_timed_alone_and_in_place(tmp_path: Path) -> None:
    found = speed(
        tmp_path, "planted -slow=n33 -slow_us=3000", against=Target.parse("onnxruntime -opt=none")
    )
    worst = found["regions"][0]
    assert worst["nodes"] == ["n33"]
    for where in ("alone", "in_place"):
        assert 3000 < worst[where]["latency_us"] < 4500
        low, high = worst[where]["interval_us"]
        assert low <= worst[where]["latency_us"] <= high
        assert worst[where]["ratio_interval"][0] > 1.5
    assert found["whole"]["ratio"] > 1
    folder = Path(worst["reproducer"]["folder"])
    assert worst["reproducer"]["ran"] and "alone" in (folder / "issue.md").read_text(encoding="utf-8")


def test_the_best_other_installed_target_is_taken(tmp_path: Path) -> None:
    found = speed(tmp_path, "planted -slow=n7 -slow_us=4000", nodes=20)
    assert found["sides"][1]["target"] in ("onnxruntime", "openvino", "mnn", "ncnn")
    assert found["regions"][0]["nodes"] == ["n7"]


def test_a_script_that_times_needs_the_runtimes_alone(tmp_path: Path) -> None:
    found = speed(tmp_path, "onnxruntime -opt=none", nodes=40, against=Target.parse("onnxruntime"))
    for region in found["regions"]:  # on a busy machine there may be none
        script = Path(region["reproducer"]["folder"]) / "time_it.py"
        assert "collage" not in script.read_text(encoding="utf-8")
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and done.stdout.count(" us") == 2, done.stderr
    assert "whole" in found


def test_another_version_of_the_runtime_is_compared(tmp_path: Path) -> None:
    """Here is version 1.0; in the other environment the same node is faster."""
    faster = interpreter(tmp_path, "faster", {planted.ENVIRONMENT: "-60"}, [tmp_path / "site"])
    found = speed(tmp_path, "planted -slow=n12 -slow_us=4000", nodes=20, against_python=faster)
    assert [side["version"] for side in found["sides"]] == ["1.0", "1.-60"]
    assert found["regions"][0]["nodes"] == ["n12"]
    assert found["regions"][0]["alone"]["ratio_interval"][0] > 1.5


def test_the_part_on_speed_stops_when_it_is_cancelled(tmp_path: Path) -> None:
    onnx.save(long_model(10), tmp_path / "m.onnx")
    request = DiagnoseRequest(
        source=tmp_path / "m.onnx",
        target=Target.parse("planted"),
        output=tmp_path / "found",
        options=TuneOptions(threads=1),
        against=Target.parse("onnxruntime"),
    )
    cancel, stages = threading.Event(), []

    def listen(event: Event) -> None:
        stages.append(event.stage)
        if event.stage == "slow":
            cancel.set()

    with pytest.raises(CancelledError):
        diagnose(request, listener=listen, cancel=cancel)
    assert stages.count("slow") == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"against_python": Path("/bin/true")}, "no Python interpreter"),
        ({"against": Target.parse("planted -refuses=Tanh")}, "give another --against"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_trial(
    tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    onnx.save(long_model(10), tmp_path / "m.onnx")
    request = DiagnoseRequest(
        source=tmp_path / "m.onnx",
        target=Target.parse("onnxruntime"),
        output=tmp_path / "found",
        options=TuneOptions(threads=1),
        **more,
    )
    stages: list[str] = []
    with pytest.raises(BadInputError, match=said):
        diagnose(request, listener=lambda event: stages.append(event.stage))
    assert "trial" not in stages and not (tmp_path / "found").exists()


def test_regions_that_cannot_be_timed_are_told(tmp_path: Path) -> None:
    target = "planted -fault=small -least=10"
    found = speed(tmp_path, target, nodes=10, against=Target.parse("onnxruntime"))
    assert "whole" in found and found["note"].startswith("not in blocks: ")


def test_a_target_with_a_fault_is_not_timed(tmp_path: Path) -> None:
    found = speed(tmp_path, "planted -fault=wrong -at=n3", nodes=10)
    assert found == {"note": "speed is compared where there is no fault"}

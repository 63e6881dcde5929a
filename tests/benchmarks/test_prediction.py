"""Predicted and measured latencies of plans are compared round by round."""

import json
import statistics
from functools import partial
from pathlib import Path

import pytest

from benchmarks.prediction import measure
from benchmarks.prediction.plans import draw_plans
from benchmarks.prediction.tables import estimate_table, outcomes, picture, score, table
from collage.costs.measurement_context import BORDER_US, CALL_US


def _result(promised_us: list[list[float]], plans_us: list[list[float]]) -> dict[str, object]:
    plans = [{"parts": [[0, 1, "a"]], "values": 0} for _ in plans_us]
    return {"plans": plans, "plans_us": plans_us, "promised_us": {"way": promised_us}}


def test_a_machine_that_slows_down_is_no_error() -> None:
    kept = [1000.0, 2000.0, 2000.0]
    promised = [1.03 * us - CALL_US for us in kept]
    (found,) = outcomes(_result([promised], [kept]), "way")
    assert found.measured_us == 2000.0
    assert found.error == pytest.approx(0.03)


def test_calls_and_borders_are_promised_too() -> None:
    result = _result([[900.0]], [[1000.0]])
    result["plans"] = [{"parts": [[0, 1, "a"], [1, 2, "b"]], "values": 3}]
    (found,) = outcomes(result, "way")
    assert found.predicted_us == pytest.approx(900 + 2 * CALL_US + 3 * BORDER_US)


def test_plans_promised_in_the_wrong_order_are_discordant() -> None:
    kept = [[100.0] * 5, [200.0] * 5, [400.0] * 5]
    right = score(_result([[90.0] * 5, [180.0] * 5, [360.0] * 5], kept), "way")
    assert (right.tau, right.pairs) == (1.0, 3) and right.bias < 0
    wrong = score(_result([[390.0] * 5, [195.0] * 5, [95.0] * 5], kept), "way")
    assert wrong.tau == -1.0


@pytest.mark.slow
def test_a_real_models_plans_and_parts_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    monkeypatch.setattr(measure, "_ROUNDS_S", 0.0)
    choose = partial(draw_plans, count=3, seed=0)
    measure.prepare("ppocr_cls", ["onnxruntime", "openvino"], tmp_path / "cls", choose)
    wanted = ["hot", measure.CHOSEN]
    found = measure.measure("ppocr_cls", tmp_path / "cls", wanted, again=False, results=results)
    assert len(found["plans"]) == 3
    assert all(len(kept) == 5 and min(kept) > 0 for kept in found["plans_us"])
    assert found["evict_bytes"]["hot"] == 0 < found["evict_bytes"][measure.CHOSEN]
    parts = {f"{a}-{b} {target}" for plan in found["plans"] for a, b, target in plan["parts"]}
    for way in wanted:
        assert found["parts_us"][way].keys() == found["estimates_us"].keys() == parts
        for plan, promised in zip(found["plans"], found["promised_us"][way], strict=True):
            least = min(found["parts_us"][way][f"{a}-{b} {target}"] for a, b, target in plan["parts"])
            assert len(promised) == 5 and statistics.median(promised) > least
    assert "ppocr_cls: round 5" in capsys.readouterr().out
    # What was measured is not measured again, and all of it can be shown.
    known = measure.measure("ppocr_cls", tmp_path / "cls", wanted, again=False, results=results)
    assert known == json.loads((results / "ppocr_cls.json").read_text(encoding="utf-8"))
    assert known["plans_us"] == found["plans_us"]
    assert "| ppocr_cls |" in table([known]) and "onnxruntime" in estimate_table(
        [known], measure.CHOSEN
    )
    assert picture([known], measure.CHOSEN).count("<circle") == 3


def test_results_of_two_machines_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dcgan.json").write_text('{"hardware": "another one"}', encoding="utf-8")
    arguments = ["prediction", "--models", "silero", "--results", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit):
        measure.main()
    assert "another machine measured (another one); name another folder" in capsys.readouterr().err

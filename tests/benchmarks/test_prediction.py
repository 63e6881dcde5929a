"""What plans were promised and what they took: compared turn by turn."""

import pytest

from benchmarks.prediction_show import outcomes, score
from collage.context import BORDER_US, CALL_US


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

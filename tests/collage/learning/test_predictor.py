"""What is predicted from other models, and that its bounds hold."""

from __future__ import annotations

import pytest

from collage.learning.features import nominal_us
from collage.learning.predictor import ENOUGH_MODELS, Predictor
from tests.collage.learning.stated import KINDS, STRENGTHS, model_name, observed, part
from tests.collage.needs import needs

pytestmark = needs("sklearn")


@pytest.mark.slow
def test_parts_of_a_new_model_are_predicted() -> None:
    predictor = Predictor(observed(12))
    for kind in KINDS:
        known = part(kind, 17.0)
        for target, strength in STRENGTHS.items():
            expected = predictor.expected_us(target, known)
            assert expected == pytest.approx(nominal_us(known) * strength[kind], rel=0.15)
    assert predictor.checked == ()
    errors = predictor.errors(predictor.targets)
    assert all(error.median < 0.1 and error.models == 12 for error in errors)
    assert all(1.0 < error.factor < 1.5 for error in errors)
    assert predictor.checked == tuple(sorted(STRENGTHS))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "ratio"), [("1x1", 2.0), ("3x3", 2.5), ("product", 1.8)])
def test_ratio_of_a_whole_model_is_bounded_from_below(kind: str, ratio: float) -> None:
    least = Predictor(observed(12)).least_ratio("slow", "even", part(kind, 20.5))
    assert least is not None
    assert 0.75 * ratio < least < ratio


def test_nothing_is_said_of_few_models() -> None:
    predictor = Predictor(observed(ENOUGH_MODELS - 1))
    assert predictor.targets == ()
    assert predictor.expected_us("even", part("1x1", 17.0)) is None
    assert predictor.least_ratio("slow", "even", part("1x1", 20.5)) is None


@pytest.mark.slow
def test_a_bound_holds_for_nine_of_ten_new_models() -> None:
    """Also where little can be learned: bounds are as far off as predictions were."""
    held, tried = 0, 0
    for seed in range(4):
        rows = observed(24, seed=seed, noise=0.5)
        known = Predictor([row for row in rows if row.model < model_name(14)])
        wholes = {(row.model, row.target): row for row in rows if row.is_whole}
        for (model, target), row in wholes.items():
            if target == "slow" and model >= model_name(14):
                least = known.least_ratio("slow", "even", row.features)
                assert least is not None
                held += row.latency_us / wholes[model, "even"].latency_us >= least
                tried += 1
    assert tried == 40
    assert held >= 0.85 * tried


def test_observations_of_one_part_count_once() -> None:
    rows = observed(10)
    assert Predictor([*rows, *rows]).errors(["even"])[0].rows == len(rows) / len(STRENGTHS)

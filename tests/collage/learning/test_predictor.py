"""What is predicted from other models, and that its bounds hold."""

from __future__ import annotations

import random

import pytest

from collage.learning.features import nominal_us
from collage.learning.predictor import ENOUGH_MODELS, Part, Predictor
from tests.collage.learning.stated import KINDS, STRENGTHS, observed, part

pytest.importorskip("sklearn")


def _model(kinds: tuple[str, ...], base: str, seed: int = 7) -> list[Part]:
    luck = random.Random(seed)
    parts = [(kind, part(kind, luck.uniform(14.0, 20.0))) for kind in kinds]
    return [Part(known, nominal_us(known) * STRENGTHS[base][kind]) for kind, known in parts]


def test_parts_of_a_new_model_are_predicted() -> None:
    predictor = Predictor(observed(12))
    for kind in KINDS:
        known = part(kind, 17.0)
        for target, strength in STRENGTHS.items():
            expected = predictor.expected_us(target, known)
            assert expected == pytest.approx(nominal_us(known) * strength[kind], rel=0.15)
    assert all(error.median < 0.1 and error.models == 12 for error in predictor.errors)
    assert all(1.0 < error.factor < 1.5 for error in predictor.errors)


def test_a_target_that_is_slower_everywhere_saves_nothing() -> None:
    predictor = Predictor(observed(12))
    saved = predictor.most_saved("slow", "even", _model(KINDS * 4, "even"))
    assert saved is not None
    assert saved < 0.01
    assert predictor.models_of("slow", "even") == 12


def test_a_target_that_is_quick_at_something_may_save_that() -> None:
    predictor = Predictor(observed(12))
    everything = _model(("3x3",) * 8, "even")
    saved = predictor.most_saved("mixed", "even", everything)
    assert saved is not None
    assert saved > 0.4
    other = predictor.most_saved("mixed", "even", _model(("product",) * 8, "even"))
    assert other is not None
    assert other < saved / 3


def test_nothing_is_said_of_few_models() -> None:
    predictor = Predictor(observed(ENOUGH_MODELS - 1))
    assert predictor.targets == ()
    assert predictor.expected_us("even", part("1x1", 17.0)) is None
    assert predictor.most_saved("slow", "even", _model(KINDS, "even")) is None
    assert predictor.errors == ()


def test_a_bound_holds_for_nine_of_ten_new_models() -> None:
    """Where nothing can be learned, the bound must say that anything may be saved."""
    held, tried = 0, 0
    for seed in range(3):
        rows = observed(24, seed=seed, noise=0.5)
        models = sorted({row.model for row in rows})
        for new in models[:3]:
            known = Predictor([row for row in rows if row.model not in (new, *models[14:])])
            mine = [row for row in rows if row.model == new and row.target == "slow"]
            base = [row for row in rows if row.model == new and row.target == "even"]
            parts = [Part(row.features, row.latency_us) for row in base]
            bound = known.most_saved("slow", "even", parts)
            assert bound is not None
            pairs = zip(base, mine, strict=True)
            really = sum(max(b.latency_us - m.latency_us, 0.0) for b, m in pairs)
            held += really / sum(row.latency_us for row in base) <= bound
            tried += 1
    assert held >= 0.8 * tried


def test_observations_of_one_part_count_once() -> None:
    rows = observed(10)
    assert Predictor([*rows, *rows]).errors[0].rows == len(rows) / len(STRENGTHS)

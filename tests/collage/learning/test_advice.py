"""What is measured first, and what is left out, by what other models took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collage.cost_db.costs.observations import Gain, ObservationStore
from collage.cost_db.database import CostDatabase
from collage.learning import advice
from collage.learning.advice import NO_ADVICE, Advice, advice_for, of_targets
from collage.learning.observe import Named
from collage.learning.predictor import ENOUGH_MODELS
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target
from tests.collage.learning.stated import KINDS, gained, model_name, observed
from tests.collage.needs import needs
from tests.partitioner.graphs import text_model

pytestmark = needs("sklearn")
EVEN, SLOW, MIXED, NEW = (Target(name) for name in ("even", "slow", "mixed", "new"))
ALL = (NEW, SLOW, MIXED, EVEN)
NAMED = Named(
    hardware="here",
    model="ef" * 32,
    texts={target: str(target) for target in ALL},
    versions=dict.fromkeys(ALL, "1.0"),
)


def _products() -> GraphIndex:
    """A model of large products alone."""
    steps = "  ".join(f"v{i + 1} = MatMul(v{i}, w)" for i in range(8))
    return text_model(
        f"g (float[256,512] v0, float[512,512] w) => (float[256,512] v8) {{ {steps} }}"
    ).index


def _advice(folder: Path, models: int, named: Named = NAMED, used: str = "even") -> Advice:
    database = CostDatabase(f"sqlite:///{folder / 'c.db'}")
    try:
        store = ObservationStore(database.connections)
        store.keep(observed(models))
        for gain in gained(models, used, of_targets(named)):
            store.keep_gain(gain)
        return advice_for(database, _products(), named, str)
    finally:
        database.close()


@pytest.mark.slow
def test_the_target_that_is_expected_to_be_fastest_comes_first(tmp_path: Path) -> None:
    found = _advice(tmp_path, 12).in_order(ALL)
    assert found[0] == EVEN
    assert found[-1] == NEW  # nothing is known of it


@pytest.mark.slow
def test_a_target_that_was_slow_and_of_no_use_is_left_out(tmp_path: Path) -> None:
    known = _advice(tmp_path, 18)
    reason = known.against(SLOW, EVEN)
    assert reason is not None
    assert reason.startswith("left out: it takes at least 1.")
    assert "of 18 plans none used it" in reason
    # Faster than the base, or unknown.
    assert known.against(EVEN, SLOW) is None
    assert known.against(NEW, EVEN) is None


@pytest.mark.slow
def test_a_slow_target_that_some_plan_used_is_not_left_out(tmp_path: Path) -> None:
    assert _advice(tmp_path, 18, used="slow").against(SLOW, EVEN) is None


@pytest.mark.slow
def test_a_target_that_was_used_where_it_is_fast_is_left_out_elsewhere(
    tmp_path: Path,
) -> None:
    """It took half as long with 3x3 convolutions, was used there, and takes twice as long here."""
    known = _advice(tmp_path, 18, used="")
    with_3x3 = {model_name(i) for i in range(18) if KINDS[i % len(KINDS)] == "3x3"}
    gains = [replace(g, used=("mixed",)) if g.model in with_3x3 else g for g in known.gains]
    assert replace(known, gains=gains).against(MIXED, EVEN) is not None
    # One product of another model was slower still, and used it.
    slowest = max(known._records(MIXED))[0]
    record = [
        g for g, (ratio, _) in zip(known.gains, known._records(MIXED), strict=True) if ratio == slowest
    ]
    gains = [replace(g, used=("mixed",)) if g in record else g for g in known.gains]
    assert replace(known, gains=gains).against(MIXED, EVEN) is None


@pytest.mark.slow
@pytest.mark.parametrize("models", [0, ENOUGH_MODELS - 1])
def test_few_models_advise_nothing(models: int, tmp_path: Path) -> None:
    known = _advice(tmp_path, models)
    assert known.in_order(ALL) == list(ALL)
    assert known.against(SLOW, EVEN) is None
    assert known.against_search(0.0) is None
    assert known.told() is None
    assert NO_ADVICE.in_order(ALL) == list(ALL)


@pytest.mark.slow
def test_nothing_is_predicted_from_other_versions_or_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = replace(NAMED, versions=dict.fromkeys(ALL, "2.0"))
    assert _advice(tmp_path, 12, newer).predictor is None
    monkeypatch.setattr(advice, "learner_is_installed", lambda: False)
    assert _advice(tmp_path, 12).predictor is None


@pytest.mark.slow
def test_a_predictor_is_made_anew_only_when_rows_have_grown(tmp_path: Path) -> None:
    store_url = f"sqlite:///{tmp_path / 'c.db'}"
    database = CostDatabase(store_url)
    store = ObservationStore(database.connections)
    rows = observed(40)
    of_model = len(rows) // 40

    def predictor() -> object:
        return advice.seen_of(store, store_url, NAMED).predictor

    store.keep(rows[: 20 * of_model])
    first = predictor()
    assert first is not None
    store.keep(rows[: 21 * of_model])
    assert predictor() is first
    store.keep(rows[: 24 * of_model])
    assert predictor() is not first
    database.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("best", "promised", "ends"),
    [(0.0, 0.02, True), (0.0, 0.2, False), (0.2, 0.02, False), (0.01, 0.04, True), (0.01, 0.05, False)],
)
def test_a_search_is_left_out_where_others_like_it_gained_nothing(
    best: float, promised: float, ends: bool, tmp_path: Path
) -> None:
    """Nine models promised 5 % each; one of them gained something."""
    database = CostDatabase(f"sqlite:///{tmp_path / 'c.db'}")
    store = ObservationStore(database.connections)
    for i in range(ENOUGH_MODELS):
        gain = Gain("here", f"{i:064x}", of_targets(NAMED), 0.05, best if i == 4 else 0.0, ("even",))
        store.keep_gain(gain)
    # What the model itself gained before says nothing of other models.
    store.keep_gain(Gain("here", NAMED.model, of_targets(NAMED), 0.0, 0.9, ()))
    known = advice_for(database, _products(), NAMED, str)
    database.close()
    reason = known.against_search(promised)
    assert (reason is not None) is ends
    if reason:
        assert reason.startswith(f"ended early: the best target for each part promises {promised:.1%}")

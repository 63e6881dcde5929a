"""When a search is left out: one target is far ahead, and no mix promises anything."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from collage.accuracy.budget_search import BudgetSearch
from collage.accuracy.target_choice import TargetChoice
from collage.deadline import Deadline
from collage.learning.advice import NO_ADVICE
from collage.partitioner.target import Target
from collage.refinement.comparisons import Comparisons
from collage.timing.request import NO_TIME, PlanTiming
from collage.tuning.early_end import (
    as_far_off,
    early_end,
    keeping_task,
    reason_to_end,
    reason_to_mix_nothing,
    sole_leader,
)
from collage.tuning.stages import Budgeted
from tests.collage.refinement.stated_timers import StatedTimer
from tests.collage.stated_world import FREE, INFINITE, TARGETS, StatedCosts, World

FAST, SLOW = Target("openvino"), Target("mnn")
VARIANT = Target.parse("openvino -threads=1")


@pytest.mark.parametrize(
    ("slow_us", "promise_us", "ends"),
    [
        (1600.0, 1000.0, True),
        (1600.0, 990.0, True),
        (1600.0, 950.0, False),
        # Profiles of two runtimes that are near each other say too little.
        (1400.0, 1000.0, False),
    ],
)
def test_search_ends_only_far_ahead_and_without_a_promise(
    slow_us: float, promise_us: float, ends: bool
) -> None:
    reason = reason_to_end(FAST, {FAST: 1000.0, SLOW: slow_us}, lambda: promise_us)
    assert (reason is not None) is ends
    if reason:
        assert reason.startswith("ended early: openvino is 1.6 times as fast")


def test_variants_of_the_same_runtime_are_no_other_runtime() -> None:
    times_us = {FAST: 1000.0, VARIANT: 1010.0, SLOW: 2000.0}
    assert reason_to_end(FAST, times_us, lambda: 1000.0) is not None


@pytest.mark.parametrize("times_us", [{FAST: 1000.0}, {SLOW: 1000.0}, {}])
def test_a_target_without_another_to_beat_does_not_end_the_search(
    times_us: dict[Target, float],
) -> None:
    assert reason_to_end(FAST, times_us, lambda: 1000.0) is None


def _budget(promised_us: float) -> BudgetSearch:
    chosen = TargetChoice(exact=(SLOW,))
    return cast(BudgetSearch, SimpleNamespace(promised_us=lambda: promised_us, chosen=chosen))


def _reason(
    whole_us: Sequence[float],
    disturbed: int = 0,
    left_out_us: float | None = None,
    budget: BudgetSearch | None = None,
    exact_error: float = 0.0,
    **asked: object,
) -> str | None:
    """Why no search follows comparisons of three targets, the last of which may not have been compiled in time."""
    world = World(24, 3)
    stated = {f"single {t}": (us,) for t, us in zip(TARGETS, whole_us, strict=True)}
    timer = StatedTimer(stated, disturbed)
    alone_us = dict(zip(TARGETS, whole_us, strict=True))
    comparisons = Comparisons.of(world.model, [], FREE, timer, alone_us)
    comparisons.open(())
    if left_out_us is not None:
        late = next(e for e in comparisons.singles if TARGETS[2] in e.plan.targets)
        alone_us[TARGETS[2]] = left_out_us
        late.timings, late.baseline_ratios = {0: PlanTiming(failure=NO_TIME)}, {0: []}
    known = SimpleNamespace(
        model=world.model,
        candidates=world.candidates,
        transitions=world.transitions,
        left_out={},
        specs=TARGETS,
        budget=budget,
        exact_error=exact_error,
        request=_request(**asked),
        advice=NO_ADVICE,
        single_targets=SimpleNamespace(latencies_us=lambda: alone_us),
        costs=StatedCosts(world.truth, most=0),
        estimates=world.estimates(()),
        constraints=FREE,
        deadline=Deadline(search_s=INFINITE),
    )
    return early_end(cast(Budgeted, known), comparisons, 0.0)


def _request(pareto: object = False, check: object = None) -> SimpleNamespace:
    options = SimpleNamespace(pareto=pareto, metric="max", tolerance=0.05)
    return SimpleNamespace(options=options, check=check)


@pytest.mark.parametrize(("promised_us", "ends"), [(1000.0, True), (985.0, True), (970.0, False)])
def test_a_whole_model_within_a_budget_ends_it_where_no_mix_promises_more(
    promised_us: float, ends: bool
) -> None:
    """However near other runtimes are, if it computes less than exactly."""
    budget = _budget(promised_us)
    assert (_reason((1000.0, 1600.0, 1700.0), budget=budget) is not None) is ends
    near = _reason((1000.0, 1200.0, 1700.0), budget=budget)
    assert near == (reason_to_mix_nothing(TARGETS[0], 1000.0, promised_us) if ends else None)
    assert _reason((1000.0, 1200.0, 1700.0), budget=budget, exact_error=INFINITE) is None


@pytest.mark.parametrize("asked", [{"pareto": True}, {"check": object()}], ids=("front", "check"))
def test_a_front_or_a_check_of_the_callers_own_is_searched_for(asked: dict[str, object]) -> None:
    assert _reason((1000.0, 1600.0, 1700.0), budget=_budget(1000.0), **asked) is None
    assert _reason((1000.0, 1600.0, 1700.0), **asked) is not None  # there is nothing to mix


@pytest.mark.parametrize(
    ("fast_us", "promised_us", "error", "leads"),
    [
        (1000.0, 1000.0, 0.04, True),
        (1000.0, 970.0, 0.04, False),
        # It errs too much to be returned.
        (1000.0, 1000.0, 0.06, False),
        # The exact target is faster.
        (1700.0, 1700.0, 0.04, False),
    ],
)
def test_whole_models_run_before_mixes_that_promise_nothing(
    fast_us: float, promised_us: float, error: float, leads: bool
) -> None:
    errors = {FAST: error, SLOW: 0.0}
    singles = SimpleNamespace(
        latencies_us=lambda: {FAST: fast_us, SLOW: 1600.0},
        within=lambda limit, us: {t: v for t, v in us.items() if errors[t] <= limit},
    )
    known = cast(Budgeted, SimpleNamespace(single_targets=singles, request=_request(), task=None))
    assert sole_leader(known, _budget(promised_us)) == (FAST if leads else None)


def test_a_lead_in_disturbed_rounds_does_not_end_the_search() -> None:
    assert _reason((1000.0, 1600.0, 1700.0)) is not None
    assert _reason((1000.0, 1600.0, 1700.0), disturbed=1) is None


@pytest.mark.parametrize(("alone_us", "ends"), [(1200.0, False), (2000.0, True)])
def test_a_target_not_compiled_in_time_counts_as_it_was_measured(alone_us: float, ends: bool) -> None:
    assert (_reason((1000.0, 1600.0, 1000.0), left_out_us=alone_us) is not None) is ends


def test_a_target_that_is_too_far_off_is_late_with_what_reduces_more() -> None:
    texts = ("openvino", "openvino -precision=bf16", "openvino -quant=static_int8", "mnn")
    targets = [Target.parse(text) for text in texts]
    both = Target.parse("openvino -precision=bf16 -quant=static_int8")
    assert as_far_off(targets[2], [*targets, both]) == {targets[2], both}


@pytest.mark.parametrize(
    ("keeping", "fastest", "far"),
    [
        (["openvino -quant=static_int8"], "openvino -quant=static_int8", 0),
        (["openvino -precision=bf16"], "openvino -precision=bf16", 1),
        (["mnn"], None, 2),
    ],
)
def test_the_fastest_whole_model_that_keeps_the_task_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, keeping: list[str], fastest: str | None, far: int
) -> None:
    alone_us = {"openvino": 20.0, "mnn": 30.0, "openvino -precision=bf16": 12.0}
    alone_us |= {"openvino -quant=static_int8": 10.0}
    latencies_us = {Target.parse(text): us for text, us in alone_us.items()}
    known: Any = SimpleNamespace(
        task="it is stated",
        out_of_time=False,
        single_targets=SimpleNamespace(latencies_us=lambda: latencies_us),
        exact_us=lambda us: {t: us[t] for t in us if not t.options},
    )
    monkeypatch.setattr(
        "collage.tuning.early_end._keeps_task", lambda _, target: str(target) in keeping
    )
    found, too_far = keeping_task(known, Target.parse("openvino -quant=static_int8"))
    assert (None if found is None else str(found), len(too_far)) == (fastest, far)

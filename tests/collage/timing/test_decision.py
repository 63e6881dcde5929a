"""The rule by which a plan is chosen keeps its promises whatever was measured."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.target import Target
from collage.timing.decision import choose, complexity
from collage.timing.estimates import Estimates, levels
from collage.timing.request import DISTURBED, PlanTiming
from collage.timing.standings import Standings
from collage.timing.timed_plan import TimedPlan, wins

TARGETS = tuple(Target(name) for name in ("null", "simulated", "onnxruntime", "openvino"))
WAYS = (*TARGETS, Target.parse("openvino -threads=1"), Target.parse("onnxruntime -rewrite=on"))


def _plan(name: str, target: Target, parts: int = 1) -> TimedPlan:
    others = (target, TARGETS[0] if target is not TARGETS[0] else TARGETS[1])
    return TimedPlan(Plan(tuple(Candidate(1 << i, others[i % 2]) for i in range(parts))), name)


def _compare(number: int, samples_us: Sequence[tuple[TimedPlan, Sequence[float]]]) -> None:
    """A comparison of plans, the baseline first."""
    base = samples_us[0][1]
    for entry, own in samples_us:
        entry.timings[number] = PlanTiming(tuple(own))
        entry.baseline_ratios[number] = [a / b for a, b in zip(own, base, strict=False)]


def _choose(entries: Sequence[TimedPlan]) -> TimedPlan:
    return choose(entries, Estimates(entries))


# Levels that are often alike, so that plans tie.
LOGS = st.sampled_from([0.0, 0.01]) | st.floats(-0.5, 0.5, allow_nan=False, width=32)


@st.composite
def tunings(draw: st.DrawFn) -> list[TimedPlan]:
    """Plans of one to three partitions, and comparisons of them: the first plan is in all, others in some.

    In a comparison each plan has a level, around which its rounds go up and down, each plan's at a moment of its own.
    """
    count = draw(st.integers(2, 6))
    entries = [
        _plan(f"plan {i}", draw(st.sampled_from(WAYS)), 1 + (draw(st.integers(0, 2)) if i else 0))
        for i in range(count)
    ]
    # The same plan twice would be one entry.
    entries = [TimedPlan(Plan(e.plan.partitions, lanes=1 + i), e.name) for i, e in enumerate(entries)]
    for number in range(draw(st.integers(1, 6))):
        swing = draw(st.sampled_from([0.0, 0.01, 0.1]))
        present = [0, *(i for i in range(1, count) if draw(st.booleans()) or number == 0)]
        _compare(number, [(entries[i], _samples(draw(LOGS), swing, draw(THIRDS))) for i in present])
    return entries


THIRDS = st.integers(0, 2)


def _samples(level: float, swing: float, turn: int) -> list[float]:
    return [1000 * math.exp(level + swing * ((i + turn) % 3)) for i in range(6)]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(tunings(), st.randoms(use_true_random=False))
def test_order_of_plans_and_comparisons_changes_nothing(
    entries: list[TimedPlan], order: random.Random
) -> None:
    chosen = _choose(entries)
    shuffled = list(entries)
    order.shuffle(shuffled)
    for entry in shuffled:
        numbers = list(entry.timings)
        order.shuffle(numbers)
        entry.timings = {number: entry.timings[number] for number in numbers}
        entry.baseline_ratios = {number: entry.baseline_ratios[number] for number in numbers}
    # The baseline is the first entry, to which estimates are relative.
    assert choose(shuffled, Estimates(entries)) is chosen
    assert choose(shuffled, Estimates(shuffled)) is chosen


@settings(max_examples=150, deadline=None)
@given(tunings())
def test_plan_that_loses_every_comparison_never_wins(entries: list[TimedPlan]) -> None:
    """Not beside a plan that is no more complex, and faster by its estimate too."""
    estimates = Estimates(entries)
    chosen = choose(entries, estimates)
    for other in entries:
        is_faster = estimates.ratio(other) < estimates.ratio(chosen) - 1e-8
        if not is_faster or complexity(other.plan) > complexity(chosen.plan):
            continue
        won, met = wins(other, chosen)
        everywhere = set(chosen.timings) <= set(other.timings)
        assert not (everywhere and won == met >= 2)


@settings(max_examples=150, deadline=None)
@given(tunings(), st.sets(st.sampled_from(WAYS)))
def test_gain_over_the_best_single_target_is_never_below_one(
    entries: list[TimedPlan], given_targets: set[Target]
) -> None:
    """Whichever single targets the caller gave; the others are variants of them."""
    standings = Standings(tuple(entries))
    winner, estimates = standings.winner(), standings.estimates
    parts = [(entry, entry.plan.partitions) for entry in entries]
    singles = [e for e, own in parts if len(own) == 1 and own[0].target in given_targets]
    best = standings.best_beside(winner, singles)
    assert best is None or estimates.between(best, winner).ratio >= 1.0
    simplest = min(complexity(entry.plan) for entry in entries)
    if complexity(winner.plan) > simplest:
        first = choose([e for e in entries if complexity(e.plan) == simplest], estimates)
        assert estimates.between(first, winner).ratio > 1.0


def test_a_circle_of_plans_that_each_beat_the_next_has_a_winner() -> None:
    """By medians of rounds each of three is faster than the next in both comparisons; a mix is hardly faster."""
    circle = [_plan(f"single {target}", target) for target in TARGETS[:3]]
    mixed = _plan("mixed", TARGETS[2], 2)
    rows = [[100.0, 101.0, 102.0] * 4, [101.0, 102.0, 100.0] * 4, [102.0, 100.0, 101.0] * 4]
    for number in range(2):
        _compare(number, [*zip(circle, rows, strict=True), (mixed, [100.99] * 12)])
    assert [wins(circle[i], circle[i - 2]) for i in range(3)] == [(2, 2)] * 3
    assert _choose(circle) in circle
    assert _choose([*circle, mixed]) in circle


@pytest.mark.parametrize("later", [[104.0] * 6, [110.0] * 3])
def test_a_plan_left_out_for_another_leaves_no_slower_winner(later: list[float]) -> None:
    """A variant is ahead of a target in the two comparisons that both ran, and slower than it by all of them."""
    base, target = _plan("single onnxruntime", TARGETS[2]), _plan("single openvino", TARGETS[3])
    variant = _plan("single openvino -threads=1", WAYS[4])
    for number in range(2):
        rows = [(base, 105.0), (target, 100.0), (variant, 98.5)]
        _compare(number, [(entry, [us] * 12) for entry, us in rows])
    for number, us in enumerate(later, 2):
        _compare(number, [(base, [105.0] * 12), (variant, [us] * 12)])
    standings = Standings((base, target, variant))
    winner = standings.winner()
    best = standings.best_beside(winner, [base, target])
    assert best is not None and standings.estimates.between(best, winner).ratio >= 1.0
    assert winner is target


def test_a_target_passed_over_for_want_of_proof_is_not_compared_with() -> None:
    """A rewritten target looks faster than the variant that is returned, in one comparison of two."""
    variant, rewritten = _plan("single openvino -threads=1", WAYS[4]), _plan("rewritten", WAYS[5])
    target = _plan("single openvino", TARGETS[3])
    for number, us in enumerate((90.0, 102.0)):
        rows = [(variant, 100.0), (target, 130.0), (rewritten, us)]
        _compare(number, [(entry, [us] * 12) for entry, us in rows])
    standings = Standings((variant, target, rewritten))
    assert standings.winner() is variant
    assert standings.ratio(rewritten) < standings.ratio(variant)
    assert standings.best_beside(variant, [target, rewritten]) is target
    # What the caller asked for is compared with the best.
    assert standings.best_beside(target, [target, rewritten]) is rewritten


@pytest.mark.parametrize("noise", [0.1, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("parts", [1, 3])
def test_noise_on_a_slow_plan_does_not_make_it_win(noise: float, parts: int) -> None:
    """Whether the slow plan is the simpler one or the more complex one."""
    generator = np.random.default_rng(7)
    for _ in range(40):
        slow = _plan("slow", TARGETS[0], parts)
        fast = _plan("fast", TARGETS[2], 4 - parts)
        for number in range(6):
            steady = 1000 * np.exp(generator.normal(0, 0.02) + generator.normal(0, 0.01, 12))
            noisy = 1300 * np.exp(generator.normal(0, 0.02) + np.abs(generator.normal(0, noise, 12)))
            _compare(number, [(fast, steady.tolist()), (slow, noisy.tolist())])
        assert _choose([fast, slow]) is fast
        assert _choose([slow, fast]) is fast


def test_fastest_of_equal_complexity_wins_without_proof() -> None:
    """A wide interval does not help: the plan that leads in every comparison is returned."""
    generator = np.random.default_rng(1)
    first, second, third = (_plan(f"single {t}", t) for t in TARGETS[:3])
    for number in range(6):
        pace = math.exp(generator.normal(0, 0.3))
        rows = [
            (entry, (1000 * factor * pace * np.exp(generator.normal(0, 0.25, 12))).tolist())
            for entry, factor in ((first, 1.0), (second, 0.8), (third, 1.25))
        ]
        _compare(number, rows)
    assert _choose([first, second, third]) is second


def test_lead_in_every_one_of_five_comparisons_is_a_proof() -> None:
    single, mixed = _plan("single", TARGETS[2]), _plan("mixed", TARGETS[2], 2)
    for number, lead in enumerate((0.002, 0.3, 0.001, 0.02)):
        _compare(number, [(single, [1000.0] * 6), (mixed, [1000 / (1 + lead)] * 6)])
    assert _choose([single, mixed]) is single
    _compare(4, [(single, [1000.0] * 6), (mixed, [999.0] * 6)])
    assert _choose([single, mixed]) is mixed


def test_one_lucky_comparison_does_not_decide() -> None:
    steady, lucky = _plan("steady", TARGETS[2]), _plan("lucky", TARGETS[3])
    for number in range(5):
        _compare(number, [(steady, [1000.0] * 6), (lucky, [1040.0 if number else 300.0] * 6)])
    assert _choose([steady, lucky]) is steady


def test_disturbed_blocks_count_less() -> None:
    """Another process takes the cores while one plan runs, in most rounds."""
    best, other = _plan("best", TARGETS[2]), _plan("other", TARGETS[3])
    waits = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    slowed = [1000 * (1 + wait) for wait in waits]
    _compare(0, [(other, [1200.0] * 8)])
    best.timings[0] = PlanTiming(tuple(slowed), waits=tuple(waits))
    best.baseline_ratios[0] = [us / 1200 for us in slowed]
    assert best.timings[0].quiet.count(False) == 5
    assert _choose([other, best]) is best
    undisturbed = PlanTiming((1.0, 1.0), waits=(0.0, DISTURBED))
    assert undisturbed.weights == (1.0, 0.5) and undisturbed.quiet == (True, True)


def test_plans_timed_in_different_minutes_have_one_pace() -> None:
    """Ours runs in both comparisons, the slower one only while the machine was twice as fast."""
    ours, other = _plan("ours", TARGETS[2]), _plan("other", TARGETS[3])
    _compare(0, [(ours, [1000.0] * 8), (other, [1100.0] * 8)])
    _compare(1, [(ours, [2000.0] * 24)])
    estimates = Estimates([ours, other])
    assert ours.latency_us == 2000 and other.latency_us == 1100
    latency_us, low_us, high_us = estimates.latency_us(other, ours)
    assert low_us <= latency_us <= high_us
    assert latency_us == pytest.approx(2200)
    assert estimates.latency_us(ours, ours) == (2000, 2000, 2000)


def test_plans_that_never_met_compare_by_those_that_met_both() -> None:
    base, one, other = _plan("base", TARGETS[0]), _plan("one", TARGETS[2]), _plan("other", TARGETS[3])
    _compare(0, [(base, [1000.0] * 8), (one, [900.0] * 8)])
    _compare(1, [(base, [3000.0] * 8), (other, [2100.0] * 8)])
    estimates = Estimates([base, one, other])
    assert estimates.between(one, other).ratio == pytest.approx(900 / 700)
    assert estimates.ratio(other) == pytest.approx(0.7)
    assert _choose([base, one, other]) is other


def test_levels_are_paired_by_round() -> None:
    """Each round has another pace; a plan that left early is judged by the rounds that it took part in."""
    paces = [1.0, 5.0, 2.0, 9.0, 1.5, 4.0]
    all_rounds = PlanTiming(tuple(100 * pace for pace in paces))
    early = PlanTiming(tuple(150 * pace for pace in paces[:4]))
    (first, _), (second, error) = levels((all_rounds, early))
    assert math.exp(second - first) == pytest.approx(1.5)
    assert error == pytest.approx(0)


def test_without_plans_nothing_is_chosen() -> None:
    with pytest.raises(ValueError, match="no plans"):
        choose([], Estimates([]))

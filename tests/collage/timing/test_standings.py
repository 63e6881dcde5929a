"""What comparisons teach: who wins, what partitions took, what borders cost."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.errors import NoPlanError
from collage.partitioner.target import Target
from collage.timing.request import NO_TIME, PlanTiming
from collage.timing.standings import Standings, border_surplus_us, residuals
from collage.timing.timed_plan import (
    TimedPlan,
    clearly_faster,
    shared_comparisons,
    speedup,
)

ONE, TWO = Target("null"), Target("simulated")


def _entry(
    parts: int, latency_us: float, predicted_us: float | None = None, noise: float = 0.0
) -> TimedPlan:
    generator = random.Random(parts)
    plan = Plan(tuple(Candidate(1 << i, (ONE, TWO)[i % 2]) for i in range(parts)))
    samples = tuple(latency_us * (1 + generator.uniform(-noise, noise)) for _ in range(16))
    steps = tuple(latency_us / parts for _ in range(parts))
    entry = TimedPlan(plan, f"{parts} parts", predicted_us)
    entry.timings[0] = PlanTiming(samples, steps, 0.0)
    entry.baseline_ratios[0] = [sample / 1000.0 for sample in samples]
    return entry


def _winner(entries: list[TimedPlan]) -> TimedPlan:
    return Standings(tuple(entries)).winner()


def test_clear_difference_shows_through_noise_and_a_small_one_does_not() -> None:
    assert clearly_faster(_entry(2, 900, noise=0.02), _entry(1, 1000, noise=0.02))
    assert not clearly_faster(_entry(2, 998, noise=0.05), _entry(1, 1000, noise=0.05))
    ratio = speedup(_entry(1, 1000), _entry(2, 800))
    assert ratio.low <= ratio.ratio <= ratio.high
    assert abs(ratio.ratio - 1.25) < 1e-9


def test_timings_with_far_cores_count_only_without_others() -> None:
    fast, slow = TimedPlan(_entry(2, 1.0).plan, "fast"), TimedPlan(_entry(1, 1.0).plan, "slow")

    def comparison(number: int, fast_us: float, far: bool) -> None:
        for entry, us in ((fast, fast_us), (slow, 1000.0)):
            entry.timings[number] = PlanTiming((us,) * 8, (us,), 0.0, far=far)
            entry.baseline_ratios[number] = [us / 1000.0] * 8

    comparison(0, 1300.0, far=True)
    assert fast.ratio == 1.3 and clearly_faster(slow, fast)
    comparison(1, 1320.0, far=True)
    assert abs(fast.ratio - 1.31) < 1e-9 and len(fast.ratios) == 16
    assert not fast.ran_in_quiet  # so it is looked at again, and no search is left out for it
    comparison(2, 900.0, far=False)
    assert fast.ratio == 0.9 and fast.latency_us == 900.0 and fast.step_us == (900.0,)
    assert clearly_faster(fast, slow) and fast.ran_in_quiet
    comparison(3, 1300.0, far=True)
    comparison(4, 920.0, far=False)
    assert abs(fast.ratio - 0.91) < 1e-9 and len(fast.ratios) == 16
    assert shared_comparisons(fast, slow) == [2, 4]
    comparison(5, 1000.0, far=False)
    assert shared_comparisons(fast, slow) == [2, 4, 5]
    fast.timings[6] = PlanTiming(failure="crash: it is stated")
    assert len(fast.ratios) == 24 and not fast.timed


def test_timing_that_made_a_mix_look_fast_does_not_confirm_it() -> None:
    mix = TimedPlan(_entry(2, 1.0).plan, "mix", proposed=True)
    single = TimedPlan(_entry(1, 1.0).plan, "single")

    def comparison(number: int, entries: dict[str, float]) -> None:
        for entry in (mix, single):
            if entry.name in entries:
                us = entries[entry.name]
                entry.timings[number] = PlanTiming((us,) * 8, (us,), 0.0)
                entry.baseline_ratios[number] = [us / 1000.0] * 8

    comparison(0, {"single": 1000.0})
    comparison(1, {"single": 1000.0, "mix": 900.0})
    assert shared_comparisons(single, mix) == [1] and clearly_faster(mix, single)
    comparison(2, {"single": 1000.0, "mix": 990.0})
    assert shared_comparisons(single, mix) == [1, 2]
    comparison(3, {"single": 1000.0, "mix": 1020.0})
    assert shared_comparisons(single, mix) == [2, 3] and not clearly_faster(mix, single)
    # A plan that the caller names, as `bench` does, nobody chose.
    mix.proposed = False
    assert shared_comparisons(single, mix) == [1, 2, 3]


@pytest.mark.parametrize(("gain", "least", "most"), [(0.0, 0.0, 0.03), (0.05, 0.9, 1.0)])
def test_the_luckiest_of_ten_wins_only_if_it_gains(gain: float, least: float, most: float) -> None:
    """Simulated: builds differ by 2 %, and the comparison that chose a mix does not judge it.

    docs/results/comparing-plans.md has how many win by other rules.
    """
    generator = np.random.default_rng(0)
    won = 0
    for _ in range(500):
        chosen_at = float(max(generator.normal(gain, 0.02, 10)))
        mix = TimedPlan(_entry(2, 1.0).plan, "mix", proposed=True)
        single = TimedPlan(_entry(1, 1.0).plan, "single")
        for number, own in enumerate((chosen_at, *generator.normal(gain, 0.02, 4))):
            for entry, us in ((mix, 1000.0 * math.exp(-own)), (single, 1000.0)):
                entry.timings[number] = PlanTiming((us,) * 4, (us,), 0.0)
                entry.baseline_ratios[number] = [us / 1000.0] * 4
        won += clearly_faster(mix, single)
    assert least <= won / 500 <= most


def test_partitions_have_costs_at_the_pace_of_their_plan() -> None:
    entry = _entry(2, 1000)
    entry.timings[1] = PlanTiming((2000.0,) * 8, (1500.0, 500.0), 0.0)
    assert entry.latency_us == 1000
    assert entry.step_us == (750, 250)


def test_noise_on_the_second_best_does_not_bring_it_back() -> None:
    best, noisy, mixed = _entry(1, 1000), _entry(1, 1000), _entry(3, 970)
    noisy.plan = Plan((Candidate(1, TWO),))
    samples = (900.0, 1110.0, 1110.0, 1010.0) * 4
    noisy.timings[0] = PlanTiming(samples, (), 0.0)
    noisy.baseline_ratios[0] = [us / 1000.0 for us in samples]
    assert clearly_faster(mixed, best) and not clearly_faster(mixed, noisy)
    assert _winner([noisy, best, mixed]) is mixed


def test_a_tie_goes_to_fewer_partitions() -> None:
    single, mixed = _entry(1, 1000, noise=0.05), _entry(3, 998, noise=0.05)
    assert _winner([mixed, single]) is single
    assert _winner([_entry(3, 800, noise=0.05), single]).plan.partitions[1:]


def test_tie_with_the_fastest_does_not_beat_what_the_fastest_beats() -> None:
    """A noisy mix of two partitions once came between three, proven faster than one target, and that target."""
    single, fastest, noisy = _entry(1, 1000), _entry(3, 960), _entry(2, 970, noise=0.2)
    samples = (880.0, 1100.0) * 8
    noisy.timings[0] = PlanTiming(samples, (), 0.0)
    noisy.baseline_ratios[0] = [us / 1000.0 for us in samples]
    assert fastest.ratio < noisy.ratio < single.ratio
    assert not clearly_faster(fastest, noisy) and not clearly_faster(noisy, single)
    assert _winner([single, noisy, fastest]) is fastest
    assert _winner([single, noisy]) is single
    proven = _entry(2, 960, noise=0.02)
    assert _winner([single, proven, _entry(3, 959, noise=0.02)]) is proven


@pytest.mark.parametrize(
    "target", ["openvino -float=0-3 -quant=static_int8", "openvino -rewrite=winograd"]
)
def test_mixed_or_rewritten_partition_is_less_simple_than_a_single_target(
    target: str,
) -> None:
    single, mixed, slower = _entry(1, 1000, noise=0.05), _entry(3, 998, noise=0.05), _entry(1, 1300)
    mixed.plan = Plan((Candidate(1, Target.parse(target)),))
    assert _winner([mixed, single]) is single
    assert _winner([mixed, slower]) is mixed


def test_a_slow_plan_with_few_samples_is_no_tie() -> None:
    """It was dropped after four rounds, and the fastest plan was disturbed in one of them."""
    mixed, dropped = _entry(3, 700), _entry(1, 1000)
    samples = (1500.0, *mixed.timings[0].samples_us[1:])
    mixed.timings[0] = PlanTiming(samples, mixed.timings[0].step_us, 0.0)
    dropped.timings[0] = PlanTiming(dropped.timings[0].samples_us[:4], (1000.0,), 0.0)
    assert not clearly_faster(mixed, dropped)
    assert _winner([dropped, mixed]) is mixed


def test_partitions_get_the_cost_that_they_had_inside_the_plan() -> None:
    mixed, single = _entry(2, 900), _entry(1, 1000)
    costs = residuals([single, mixed])
    assert costs[1, ONE] in (450.0, 725.0, 1000.0)
    assert costs[2, TWO] == 450.0


def test_borders_are_charged_what_the_plans_took_too_long() -> None:
    # Ratios are to a baseline of 1000 µs.
    assert border_surplus_us([_entry(3, 1200, predicted_us=1000)], 1000.0) == 100.0
    # A machine that has slowed down altogether says nothing about borders.
    assert border_surplus_us([_entry(3, 2000, predicted_us=1000)], 500.0) == 0.0
    assert border_surplus_us([_entry(3, 900, predicted_us=1000)], 1000.0) == 0.0
    assert border_surplus_us([], 1000.0) == 0.0


def test_only_plans_within_the_tolerance_that_keep_the_constraints_may_win() -> None:
    single, mixed = _entry(1, 1000), _entry(3, 700)
    assert Standings((single, mixed)).winner() is mixed
    few = Standings((single, mixed), eligible=lambda plan: len(plan.partitions) < 3)
    assert few.winner() is single and few.fastest() is single
    mixed.timings[0] = replace(mixed.timings[0], error=0.1)
    assert Standings((single, mixed), tolerance=0.01).winner() is single
    none = Standings((single, mixed), eligible=lambda plan: False)
    assert none.leaders() == [] and none.fastest() is None
    with pytest.raises(NoPlanError, match="1 parts: None; 3 parts: None"):
        none.winner()


def test_plan_is_known_unless_there_was_no_time_for_it() -> None:
    entry, late = _entry(1, 1000), _entry(2, 900)
    late.timings[0] = PlanTiming(failure=NO_TIME)
    standings = Standings((entry, late))
    assert standings.knows(entry.plan) and standings.find(entry.plan) == [entry]
    assert not standings.knows(late.plan) and standings.find(late.plan) == [late]


def test_a_refusal_is_told_before_a_lack_of_time() -> None:
    late = _entry(2, 900)
    late.timings = {0: PlanTiming(failure=NO_TIME), 1: PlanTiming(failure="it is refused")}
    assert late.failure == "it is refused" and Standings((late,)).knows(late.plan)

"""What is timed before the search, and targets that join it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from collage.deadline import Deadline
from collage.partitioner.rules.target_spec import TargetSpec
from collage.partitioner.search.constraints import Constraints
from collage.refinement.comparisons import Comparisons
from collage.search.corrections import NO_CORRECTIONS, Corrections
from collage.search.fixed_plans import single_plan
from collage.timing.standings import Standings
from collage.timing.timed_plan import TimedPlan
from tests.collage.refinement.stated_timers import StatedTimer
from tests.collage.stated_world import TARGETS, World

SPECS = [TargetSpec(target, "graph", lambda index, node: None) for target in TARGETS]
FIRST, SECOND, THIRD = TARGETS


def _comparisons(world: World, timer: StatedTimer) -> Comparisons:
    latencies_us = {SECOND: 2000.0, FIRST: 1000.0}
    return Comparisons.of(world.model, SPECS[:2], Constraints(), timer, latencies_us)


def test_target_that_joins_is_a_single_target_with_its_latency() -> None:
    world, timer = World(24, 3), StatedTimer({f"single {THIRD}": (500.0,)})
    comparisons = _comparisons(world, timer)
    variant = TimedPlan(single_plan(world.model, THIRD), f"single {THIRD}")
    comparisons.open([variant])
    assert variant.predicted_us is None
    joined = comparisons.joined_by(SPECS, {FIRST: 1000.0, SECOND: 2000.0, THIRD: 600.0})
    assert variant.predicted_us == 600.0
    assert list(joined.singles_us()) == [FIRST, SECOND, THIRD]
    # The value before it stays as it was.
    assert list(comparisons.singles_us()) == [FIRST, SECOND]
    assert joined.lead(TARGETS) == 1.0 and comparisons.lead(TARGETS) == pytest.approx(0.5)
    # Of a budget's runs only targets that compute exactly are asked for.
    assert joined.lead([FIRST, SECOND]) == pytest.approx(0.5)


def test_plans_that_miss_their_tolerance_are_replaced_until_none_does() -> None:
    world, timer = World(24, 3), StatedTimer({})
    comparisons = _comparisons(world, timer)
    instead = [TimedPlan(single_plan(world.model, t), f"for {t}") for t in (THIRD, FIRST)]

    def replace_missed(entries: Sequence[TimedPlan]) -> list[TimedPlan]:
        return instead[:1] if len(timer.comparisons) == 1 else instead[1:]

    comparisons.open((), replace_missed)
    # The second is known already.
    assert [f"for {THIRD}" in compared for compared in timer.comparisons] == [False, True]


def test_a_proposed_plan_comes_second_without_time() -> None:
    order: list[tuple[list[str], object]] = []

    class Timer(StatedTimer):
        def time(
            self, plans: Sequence[TimedPlan], again: Sequence[TimedPlan] = (), **more: object
        ) -> Standings:
            order.append(([entry.name for entry in plans], more["needed"]))
            return super().time(plans, again)

    def timed(is_proposed: bool, deadline: Deadline) -> list[str]:
        world = World(24, 3)
        other = TimedPlan(single_plan(world.model, THIRD), "mix", proposed=is_proposed)
        timer = Timer({})
        timer.plan_s = 1.0
        replace(_comparisons(world, timer), deadline=deadline).open([other])
        return order[-1][0]

    late = Deadline(compare_s=0.0)
    singles = [f"single {FIRST}", f"single {SECOND}"]
    assert timed(True, late) == [singles[0], "mix", singles[1]]
    assert order[-1][1] == 2
    assert timed(False, late) == [*singles, "mix"]
    assert timed(True, Deadline()) == [*singles, "mix"]


def test_corrections_keep_what_comparisons_do_not_say() -> None:
    world, timer = (
        World(24, 3),
        StatedTimer({f"single {FIRST}": (500.0,), f"single {SECOND}": (1000.0,)}),
    )
    comparisons = _comparisons(world, timer)
    given = Corrections(border_us=7.0, single_target_us={FIRST: 1.0})
    assert comparisons.corrected(given) == given
    assert comparisons.corrected(NO_CORRECTIONS).partition_us == {}
    comparisons.open(())
    corrected = comparisons.corrected(given)
    assert (corrected.border_us, corrected.single_target_us) == (7.0, {FIRST: 1.0})
    # All ran twice as fast as when they were measured.
    everything = world.model.index.all_nodes
    assert corrected.partition_us[everything, FIRST] == pytest.approx(1000.0)


def test_the_target_to_fall_back_on_is_timed_before_faster_ones() -> None:
    world, timer = World(24, 3), StatedTimer({})
    whole_us = {FIRST: 1000.0, SECOND: 2000.0, THIRD: 3000.0}
    comparisons = Comparisons.of(world.model, SPECS, Constraints(), timer, whole_us, first=THIRD)
    assert [entry.plan.partitions[0].target for entry in comparisons.singles] == [THIRD, FIRST, SECOND]
    comparisons.open(())
    baseline = comparisons.standings.baseline
    assert baseline is not None and baseline.name == f"single {THIRD}"


def test_single_targets_measured_late_run_beside_the_leader() -> None:
    world, timer = World(24, 3), StatedTimer({})
    comparisons = _comparisons(world, timer)
    comparisons.open(())
    assert comparisons.joined_late({}).singles == comparisons.singles
    assert len(timer.comparisons) == 1  # nothing joined, so nothing is timed
    joined = comparisons.joined_late({THIRD: 3000.0})
    assert [entry.name for entry in joined.singles] == [f"single {t}" for t in (FIRST, SECOND, THIRD)]
    assert timer.comparisons[1:] == [{f"single {FIRST}", f"single {THIRD}"}]


def test_a_target_that_can_hardly_be_returned_comes_last() -> None:
    world, whole_us = World(24, 3), {FIRST: 1000.0, SECOND: 2000.0, THIRD: 3000.0}
    timer = StatedTimer({})
    comparisons = Comparisons.of(
        world.model, SPECS, Constraints(), timer, whole_us, first=THIRD, last={FIRST}
    )
    assert [entry.name for entry in comparisons.singles] == [
        f"single {target}" for target in (THIRD, SECOND, FIRST)
    ]

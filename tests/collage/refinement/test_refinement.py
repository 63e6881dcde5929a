"""Searches with corrected costs, small changes of the best plan, and what is said where no plan runs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from collage.deadline import NO_DEADLINE, Deadline
from collage.events import ignore
from collage.partitioner.candidate import Plan
from collage.partitioner.errors import NoPlanError
from collage.partitioner.rules.target_spec import TargetSpec
from collage.partitioner.search.constraints import Constraints
from collage.refinement.comparisons import Comparisons
from collage.refinement.local_search import LocalSettings
from collage.refinement.refinement import Refinement
from collage.search.corrections import Corrections
from collage.search.lazy_search import LazySearch
from collage.timing.plan_timer import PlanTimer
from collage.timing.request import PlanTiming
from collage.timing.standings import Standings
from collage.timing.timed_plan import TimedPlan
from tests.collage.refinement.stated_timers import StatedTimer, refined
from tests.collage.stated_world import INFINITE, TARGETS, StatedCosts, World


@pytest.mark.slow
def test_move_that_looks_faster_in_screening_is_timed_again() -> None:
    timer = StatedTimer({"searched 1": (900.0,) * 9, "change": (850.0, 840.0) * 4})

    class Tried(Refinement):
        def _try_neighbors(
            self, lazy: LazySearch, local: LocalSettings, corrections: Corrections
        ) -> Comparisons:
            (origin,) = [entry for entry in timer.entries if entry.name == "searched 1"]
            change = TimedPlan(Plan(origin.plan.partitions, 2), "change", challenges=origin)
            timer.time([change], again=[origin])
            screening = len(timer.comparisons) - 1
            change.timings[screening] = PlanTiming((850.0, 1000.0, 840.0, 1000.0, 850.0), (), 0.0)
            for entry in timer.entries:
                entry.screenings.add(screening)
            return self.comparisons

    winner = refined(timer, World(24, 3), Tried)
    assert winner.name == "change"
    assert [("change" in compared, "searched 1" in compared) for compared in timer.comparisons][
        2:4
    ] == [(True, True)] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("latest_s", "deadline", "tried"),
    [
        (1.0, Deadline(search_s=0.0), True),
        (60.0, Deadline(search_s=0.0), False),
        (60.0, NO_DEADLINE, True),
        (1.0, Deadline(search_s=0.0, compare_s=0.0), False),
    ],
)
def test_local_moves_longer_than_their_time_are_left_out(
    latest_s: float, deadline: Deadline, tried: bool
) -> None:
    timer = StatedTimer({"searched 1": (700.0,) * 9})
    timer.latest_s, timer.plan_s = latest_s, 1.0
    asked = []

    class Asked(Refinement):
        def _try_neighbors(
            self, lazy: LazySearch, local: LocalSettings, corrections: Corrections
        ) -> Comparisons:
            asked.append(local)
            return self.comparisons

    assert refined(timer, World(24, 3), Asked, deadline=deadline).name == "searched 1"
    assert bool(asked) is tried
    assert timer.said == ([] if tried else ["the time is up: small changes of the best plan left out"])


def test_second_search_is_judged_at_the_pace_of_its_promise() -> None:
    """The machine is twice as fast in comparisons: what was promised at the old pace still takes part."""
    world = World(24, 3)
    specs = [TargetSpec(target, "graph", lambda index, node: None) for target in TARGETS]
    costs = StatedCosts(world.truth, most=len(world.candidates))
    solution = world.search(costs).run(2, INFINITE)
    slow = dict.fromkeys(TARGETS, solution.plans[0].objective_us * 1.1)
    timer = StatedTimer({f"single {t}": (us / 2,) * 9 for t, us in slow.items()})
    comparisons = Comparisons.of(world.model, specs, Constraints(), timer, slow)
    comparisons.open(())
    assert timer.comparisons[0] >= {f"single {target}" for target in TARGETS}
    Refinement(comparisons).refined(world.search(costs, deadline_s=0.0), solution, 2)
    assert "searched 1" in timer.comparisons[1]


class FailingTimer(PlanTimer):
    """A timer in which no plan keeps its tolerance."""

    def time(self, plans: Sequence[TimedPlan], *_: object, **__: object) -> Standings:
        self.entries.extend(plans)
        for entry in self.entries:
            entry.timings = {0: PlanTiming(failure="its error 0.029 exceeds 0.0119")}
        return self.standings


def test_error_lists_each_failure_where_no_plan_can_run() -> None:
    world = World(24, 3)
    costs = StatedCosts(world.truth, most=len(world.candidates))
    solution = world.search(costs).run(2, INFINITE)
    singles = dict.fromkeys(TARGETS, 1000.0)
    timer = FailingTimer(None, None, ignore)
    refinement = Refinement(Comparisons.of(world.model, [], Constraints(), timer, singles))
    with pytest.raises(NoPlanError, match=rf"single {TARGETS[0]}: its error 0\.029 exceeds 0\.0119"):
        refinement.refined(world.search(costs), solution, 2)

"""A plan is returned after it was timed again, in processes of its own."""

from __future__ import annotations

import pytest

from collage.deadline import Deadline
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.search.constraints import Constraints
from collage.refinement.comparisons import Comparisons
from collage.refinement.local_search import LocalSettings
from collage.refinement.refinement import Refinement
from collage.search.corrections import Corrections
from collage.search.lazy_search import LazySearch
from collage.timing.timed_plan import TimedPlan
from tests.collage.refinement.stated_timers import SINGLES, StatedTimer, laid_out, refined
from tests.collage.stated_world import INFINITE, TARGETS, StatedCosts, World


def test_plan_that_looks_faster_unproven_is_timed_again() -> None:
    timer = StatedTimer({"searched 1": ((800.0, 1050.0), *(900.0,) * 5)})
    assert refined(timer, World(24, 3)).name == "searched 1"
    assert sum("searched 1" in compared for compared in timer.comparisons) >= 3


def test_plan_that_only_looked_faster_loses() -> None:
    timer = StatedTimer({"searched 1": ((800.0, 1050.0), 1000.0, 1000.0, 1000.0)})
    assert len(refined(timer, World(24, 3)).plan.partitions) == 1
    # Twice more was enough: it did not look faster any longer.
    assert sum("searched 1" in compared for compared in timer.comparisons) == 3


@pytest.mark.slow
def test_successor_of_a_lucky_winner_is_timed_again_too() -> None:
    stated = {"searched 1": (580.0, 1200.0), "searched 2": (600.0, 605.0)}
    timer = StatedTimer(stated)
    winner = refined(timer, World(24, 3))
    assert winner.name == "searched 2"
    assert [("searched 1" in compared, "searched 2" in compared) for compared in timer.comparisons] == [
        (True, True),
        (True, False),
        (False, True),
    ]


def test_a_mix_that_two_builds_favored_by_luck_is_not_returned() -> None:
    timer = StatedTimer({"searched 1": (930.0, 940.0, 1060.0, 1050.0)})
    assert len(refined(timer, World(24, 3)).plan.partitions) == 1


def test_a_small_gain_is_returned_when_every_build_has_it() -> None:
    timer = StatedTimer({"searched 1": (930.0, 950.0, 940.0, 945.0, 945.0)})
    assert refined(timer, World(24, 3)).name == "searched 1"
    # The first made it look fast, so four others judge.
    assert len(timer.comparisons) == 5


@pytest.mark.slow
@pytest.mark.parametrize(("confirm_s", "comparisons"), [(0.0, 1), (25.0, 2), (37.0, 3), (1e3, 5)])
def test_a_winner_is_confirmed_while_comparisons_fit(confirm_s: float, comparisons: int) -> None:
    """A confirming comparison is expected to take 8 s, and takes 10."""
    timer = StatedTimer({"searched 1": (930.0, 950.0, 940.0, 945.0, 945.0)})
    timer.plan_s = 2.0
    deadline = Deadline(search_s=0.0, confirm_s=confirm_s, clock=lambda: 10.0 * len(timer.comparisons))
    refined(timer, World(24, 3), deadline=deadline)
    assert len(timer.comparisons) == comparisons
    is_cut = comparisons < 5
    assert timer.skipped == (("further confirmation of the winner",) if is_cut else ())


def test_plan_far_ahead_needs_no_third_build() -> None:
    timer = StatedTimer({"searched 1": (600.0, 620.0)})
    assert refined(timer, World(24, 3)).name == "searched 1"
    assert len(timer.comparisons) == 2


def test_a_quarter_in_two_builds_may_be_a_disturbance() -> None:
    timer = StatedTimer({"searched 1": (790.0, 800.0, 1050.0, 1060.0)})
    assert len(refined(timer, World(24, 3)).plan.partitions) == 1
    # The first chose it, and by the three others together it is no faster.
    assert len(timer.comparisons) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("joined_us", "expected"),
    [((705.0, 696.0) * 5, "cut, joined"), ((740.0, 735.0) * 5, "cut")],
)
def test_a_border_inside_one_target_must_earn_itself(
    joined_us: tuple[float, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collage.refinement.confirmation.sensible", lambda index, plan: True)
    world = World(24, 3)
    timer = StatedTimer({"cut": (700.0,) * 9, "cut, joined": joined_us})
    first, last = TARGETS[:2]
    parts = [(0x0000FF, first), (0x00FF00, first), (0xFF0000, last)]
    cut = TimedPlan(Plan(tuple(Candidate(*part) for part in parts)), "cut")

    class Tried(Refinement):
        def _try_neighbors(
            self, lazy: LazySearch, local: LocalSettings, corrections: Corrections
        ) -> Comparisons:
            timer.time([cut])
            return self.comparisons

    winner = refined(timer, world, Tried)
    assert winner.name == expected
    together = sum({"cut", "cut, joined"} <= compared for compared in timer.comparisons)
    assert together >= 2


def test_a_single_target_needs_no_second_look() -> None:
    slow = dict.fromkeys(["searched 1", "searched 2", "greedy"], (1100.0,))
    others = dict.fromkeys([f"single {target}" for target in TARGETS[1:]], (1060.0,))
    timer = StatedTimer(slow | others)
    assert refined(timer, World(24, 3)).name == f"single {TARGETS[0]}"
    assert len(timer.comparisons) == 1


def test_nearly_equal_single_targets_are_timed_in_several_builds() -> None:
    slow = dict.fromkeys(["searched 1", "searched 2", "greedy"], (1100.0,))
    lucky = {f"single {TARGETS[1]}": (990.0, 1020.0, 1030.0, 1040.0, 1030.0)}
    others = dict.fromkeys([f"single {target}" for target in TARGETS[2:]], (1060.0,))
    timer = StatedTimer(slow | lucky | others)
    assert refined(timer, World(24, 3)).name == f"single {TARGETS[0]}"
    assert len(timer.comparisons) == 5


def test_the_best_single_target_is_chosen_by_several_builds() -> None:
    lucky = {f"single {TARGETS[1]}": (990.0, 1020.0, 1030.0, 1040.0, 1030.0)}
    timer = StatedTimer(lucky)
    comparisons = Comparisons.of(World(24, 3).model, [], Constraints(), timer, SINGLES)
    assert Refinement(comparisons).best_single().name != f"single {TARGETS[1]}"
    assert len(timer.comparisons) == 5


def test_target_slower_whole_than_in_blocks_is_timed_again() -> None:
    """Its first minute was a bad one for it."""
    unlucky = f"single {TARGETS[1]}"
    timer = StatedTimer({unlucky: (1300.0, *(850.0,) * 8), f"{TARGETS[1]} in blocks": (1020.0,)})
    comparisons, _ = laid_out(timer, slowest_us=2500.0)
    world = World(24, 3)
    costs = StatedCosts(world.truth, most=len(world.candidates))
    solution = world.search(costs).run(1, INFINITE)
    late = world.search(costs, deadline_s=0.0)
    assert Refinement(comparisons).refined(late, solution, 1).name == unlucky
    assert sum(unlucky in compared for compared in timer.comparisons) >= 4


@pytest.mark.slow
def test_nearly_equal_single_targets_are_decided_by_more_builds() -> None:
    second = f"single {TARGETS[1]}"
    # Ahead in two builds of four, and behind by more in those that follow.
    swaying = StatedTimer({second: (960.0, 980.0, 1030.0, 985.0, 1060.0, 1070.0)})
    assert refined(swaying, World(24, 3)).name != second
    assert len(swaying.comparisons) == 6
    steady = StatedTimer({second: (960.0, 961.0, 962.0, 963.0)})
    assert refined(steady, World(24, 3)).name == second
    assert len(steady.comparisons) == 4


_MIXES = dict.fromkeys(["searched 1", "searched 2", "greedy"], (1500.0,) * 9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("disturbed", "expected", "comparisons"),
    # In quiet such a lead needs no second look. Beside others it does, and then the two are near rivals.
    [(0, 0, 1), (1, 1, 6), (2, 1, 6)],
)
def test_a_lead_in_disturbed_rounds_only_is_looked_at_again(
    disturbed: int, expected: int, comparisons: int
) -> None:
    first, second, third = (f"single {target}" for target in TARGETS)
    stated = {
        first: (1000.0, *(1040.0,) * 8),
        second: (1230.0, *(1000.0,) * 8),
        third: (2500.0,) * 9,
    }
    timer = StatedTimer(_MIXES | stated, disturbed)
    assert refined(timer, World(24, 3)).name == f"single {TARGETS[expected]}"
    assert len(timer.comparisons) == comparisons
    # What is far behind takes no part.
    assert all(third not in compared for compared in timer.comparisons[1:])


def test_a_lead_beside_others_stands_once_it_is_seen_in_quiet() -> None:
    behind = dict.fromkeys([f"single {target}" for target in TARGETS[1:]], (1230.0,) * 9)
    timer = StatedTimer(_MIXES | behind, disturbed=1)
    assert refined(timer, World(24, 3)).name == f"single {TARGETS[0]}"
    assert len(timer.comparisons) == 2


def test_a_target_with_wide_noise_is_timed_again() -> None:
    """It is a tenth behind in the middle of rounds that go up and down by as much."""
    second, third = (f"single {target}" for target in TARGETS[1:])
    stated = {second: ((760.0, 1590.0), *(950.0,) * 8), third: (1500.0,) * 9}
    timer = StatedTimer(_MIXES | stated)
    assert refined(timer, World(24, 3)).name == second
    assert len(timer.comparisons) >= 4


@pytest.mark.slow
@pytest.mark.parametrize(("fitting", "count"), [(2, 2), (3, 3), (1, 1)])
def test_where_time_is_short_the_nearest_are_looked_at_again(fitting: int, count: int) -> None:
    second, third = (f"single {target}" for target in TARGETS[1:])
    stated = {second: (1230.0, *(900.0,) * 8), third: (1300.0,) * 9}
    timer = StatedTimer(_MIXES | stated, disturbed=1)
    timer.plan_s = 1.0
    deadline = Deadline(search_s=0.0, confirm_s=fitting, clock=lambda: 0.0)
    refined(timer, World(24, 3), deadline=deadline)
    compared = [len(compared) for compared in timer.comparisons]
    assert max(compared[1:], default=1) == count
    assert all(third not in compared for compared in timer.comparisons[1:]) or fitting == 3
    assert bool(timer.skipped) is (fitting < 3)

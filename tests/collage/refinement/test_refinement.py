"""Which plan is returned: one that was timed a second time, in a process of its own."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence

import pytest

from collage.costs.estimates import Estimates
from collage.events import ignore
from collage.partitioner.candidate import Candidate, Plan, bits
from collage.partitioner.rules.target_spec import TargetSpec, enumerate_candidates
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.target import Target
from collage.refinement.local_search import LocalSettings
from collage.refinement.refinement import Refinement
from collage.search.lazy_search import LazySearch
from collage.timing.plan_timer import PlanTimer
from collage.timing.request import PlanTiming
from collage.timing.timed_plan import TimedPlan
from tests.collage.stated_world import INFINITE, TARGETS, StatedCosts, World

SINGLES = dict.fromkeys(TARGETS, 1000.0)


class StatedTimer(PlanTimer):
    """Times plans as stated: by plan, one latency for each comparison in which it takes part.

    Two numbers for one comparison are the times of odd and of even rounds.
    """

    def __init__(self, stated: Mapping[str, Sequence[float | tuple[float, float]]]) -> None:
        self.said: list[str] = []
        super().__init__(None, None, lambda event: self.said.append(event.message))
        self._stated = {name: list(times) for name, times in stated.items()}
        self.held: list[set[str]] = []

    def hold(self, newcomers: Sequence[TimedPlan], again: Sequence[TimedPlan] = (), **_: int) -> None:
        known = self.entries[:1] + [entry for entry in again if entry is not self.entries[0]]
        for entry in [*known, *newcomers]:
            times = self._stated.get(entry.name)
            now = times.pop(0) if times else 1000.0
            samples_us = (now if isinstance(now, tuple) else (now, now)) * 8
            parts = len(entry.plan.partitions)
            steps_us = (statistics.median(samples_us) / parts,) * parts
            entry.timings[len(self.held)] = PlanTiming(samples_us, steps_us, 0.0)
            entry.baseline_ratios[len(self.held)] = [sample / 1000.0 for sample in samples_us]
        self.entries.extend(newcomers)
        self.held.append({entry.name for entry in [*known, *newcomers]})


def _refined(
    timer: PlanTimer, world: World, kind: type[Refinement] = Refinement, patience_s: float = math.inf
) -> TimedPlan:
    costs = StatedCosts(world.truth, most=len(world.candidates))
    solution = world.search(costs).run(2, INFINITE)
    specs = [TargetSpec(target, "graph", lambda index, node: None) for target in TARGETS]
    local = LocalSettings() if kind is not Refinement else None
    finals = kind(world.model, specs, Constraints(), timer, SINGLES, local, patience_s)
    late = world.search(costs, deadline_s=0.0)
    return finals.refined(late, solution, 2)


def test_plan_faster_within_noise_is_timed_again() -> None:
    timer = StatedTimer({"searched 1": ((800.0, 1050.0), *(900.0,) * 5)})
    assert _refined(timer, World(24, 3)).name == "searched 1"
    assert sum("searched 1" in held for held in timer.held) >= 3


def test_plan_that_only_looked_faster_loses() -> None:
    timer = StatedTimer({"searched 1": ((800.0, 1050.0), 1000.0, 1000.0, 1000.0)})
    assert len(_refined(timer, World(24, 3)).plan.partitions) == 1
    # Once more was enough: it did not look faster any longer.
    assert sum("searched 1" in held for held in timer.held) == 2


def test_successor_of_a_lucky_winner_is_timed_again_too() -> None:
    stated = {"searched 1": (580.0, 1200.0), "searched 2": (600.0, 605.0)}
    timer = StatedTimer(stated)
    winner = _refined(timer, World(24, 3))
    assert winner.name == "searched 2"
    assert [("searched 1" in held, "searched 2" in held) for held in timer.held] == [
        (True, True),
        (True, False),
        (False, True),
    ]


def test_a_mix_that_two_builds_favored_by_luck_is_not_returned() -> None:
    timer = StatedTimer({"searched 1": (930.0, 940.0, 1060.0, 1050.0)})
    assert len(_refined(timer, World(24, 3)).plan.partitions) == 1


def test_a_small_gain_is_returned_when_every_build_has_it() -> None:
    timer = StatedTimer({"searched 1": (930.0, 950.0, 940.0, 945.0, 945.0)})
    assert _refined(timer, World(24, 3)).name == "searched 1"
    # The first made it look fast, so four others judge.
    assert len(timer.held) == 5


def test_when_it_is_late_a_winner_is_confirmed_twice() -> None:
    times = {"searched 1": (930.0, 950.0, 940.0, 945.0, 945.0)}
    late, patient = StatedTimer(dict(times)), StatedTimer(dict(times))
    late.deadline_s = patient.deadline_s = 0.0
    _refined(late, World(24, 3), patience_s=1.0)
    _refined(patient, World(24, 3))
    assert (len(late.held), len(patient.held)) == (3, 5)
    assert late.said == ["the time is up: searched 1 is confirmed no further"]
    assert not patient.said


def test_plan_far_ahead_needs_no_third_build() -> None:
    timer = StatedTimer({"searched 1": (600.0, 620.0)})
    assert _refined(timer, World(24, 3)).name == "searched 1"
    assert len(timer.held) == 2


def test_a_quarter_in_two_builds_may_be_a_disturbance() -> None:
    timer = StatedTimer({"searched 1": (790.0, 800.0, 1050.0, 1060.0)})
    assert len(_refined(timer, World(24, 3)).plan.partitions) == 1
    # After four its median still looks faster.
    assert len(timer.held) == 5


def test_move_that_looks_faster_in_screening_is_timed_again() -> None:
    timer = StatedTimer({"searched 1": (900.0,) * 9, "change": (850.0, 840.0) * 4})

    class Tried(Refinement):
        def _try_neighbors(self, lazy: LazySearch, local: LocalSettings) -> None:
            (origin,) = [entry for entry in timer.entries if entry.name == "searched 1"]
            change = TimedPlan(Plan(origin.plan.partitions, 2), "change", challenges=origin)
            timer.hold([change], again=[origin])
            screening = len(timer.held) - 1
            change.timings[screening] = PlanTiming((850.0, 1000.0, 840.0, 1000.0, 850.0), (), 0.0)
            for entry in timer.entries:
                entry.screenings.add(screening)

    winner = _refined(timer, World(24, 3), Tried)
    assert winner.name == "change"
    assert [("change" in held, "searched 1" in held) for held in timer.held][2:4] == [(True, True)] * 2


@pytest.mark.parametrize(
    ("latest_s", "deadline_s", "tried"),
    [(1.0, 0.0, True), (60.0, 0.0, False), (60.0, math.inf, True)],
)
def test_local_moves_longer_than_their_time_are_left_out(
    latest_s: float, deadline_s: float, tried: bool
) -> None:
    """Small changes that would take longer than the time set apart for them are not tried when it is late."""
    timer = StatedTimer({"searched 1": (700.0,) * 9})
    timer.latest_s, timer.deadline_s = latest_s, deadline_s
    asked = []

    class Asked(Refinement):
        def _try_neighbors(self, lazy: LazySearch, local: LocalSettings) -> None:
            asked.append(local)

    assert _refined(timer, World(24, 3), Asked).name == "searched 1"
    assert bool(asked) is tried
    assert timer.said == (
        [] if tried else ["the time is up: small changes of the best plan are left out"]
    )


@pytest.mark.parametrize(
    ("joined_us", "expected"),
    [((705.0, 696.0) * 5, "cut, joined"), ((740.0, 735.0) * 5, "cut")],
)
def test_a_border_inside_one_target_must_earn_itself(
    joined_us: tuple[float, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collage.refinement.refinement.sensible", lambda index, plan: True)
    world = World(24, 3)
    timer = StatedTimer({"cut": (700.0,) * 9, "cut, joined": joined_us})
    first, last = TARGETS[:2]
    parts = [(0x0000FF, first), (0x00FF00, first), (0xFF0000, last)]
    cut = TimedPlan(Plan(tuple(Candidate(*part) for part in parts)), "cut")

    class Tried(Refinement):
        def _try_neighbors(self, lazy: LazySearch, local: LocalSettings) -> None:
            timer.hold([cut])

    winner = _refined(timer, world, Tried)
    assert winner.name == expected
    together = sum({"cut", "cut, joined"} <= held for held in timer.held)
    assert together >= 2


def test_a_single_target_needs_no_second_look() -> None:
    slow = dict.fromkeys(["searched 1", "searched 2", "greedy"], (1100.0,))
    others = dict.fromkeys([f"single {target}" for target in TARGETS[1:]], (1060.0,))
    timer = StatedTimer(slow | others)
    assert _refined(timer, World(24, 3)).name == f"single {TARGETS[0]}"
    assert len(timer.held) == 1


def test_nearly_equal_single_targets_are_timed_in_several_builds() -> None:
    slow = dict.fromkeys(["searched 1", "searched 2", "greedy"], (1100.0,))
    lucky = {f"single {TARGETS[1]}": (990.0, 1020.0, 1030.0, 1040.0, 1030.0)}
    others = dict.fromkeys([f"single {target}" for target in TARGETS[2:]], (1060.0,))
    timer = StatedTimer(slow | lucky | others)
    assert _refined(timer, World(24, 3)).name == f"single {TARGETS[0]}"
    assert len(timer.held) == 5


def test_the_best_single_target_is_chosen_by_several_builds() -> None:
    lucky = {f"single {TARGETS[1]}": (990.0, 1020.0, 1030.0, 1040.0, 1030.0)}
    timer = StatedTimer(lucky)
    finals = Refinement(World(24, 3).model, [], Constraints(), timer, SINGLES)
    assert finals.best_single().name != f"single {TARGETS[1]}"
    assert len(timer.held) == 5


def _blocks(timer: PlanTimer, slowest_us: float) -> tuple[Refinement, list[Candidate]]:
    """Refinement whose targets were laid out, the last one as slow as stated."""
    world = World(24, 3)
    us = dict(zip(TARGETS, (1000.0, 1500.0, slowest_us), strict=True))
    finals = Refinement(world.model, [], Constraints(), timer, us)
    finals.open((), lambda entries: ())
    estimates = Estimates(world.model.index)
    for target in TARGETS:
        estimates.learn(target, dict(enumerate(world.node_us[target])))
    return finals, finals.lay_out(world.candidates, estimates, us)


def test_blocks_of_the_targets_that_are_near_run_in_turn() -> None:
    timer = StatedTimer({f"{TARGETS[0]} in blocks": (1100.0,)})
    finals, blocks = _blocks(timer, slowest_us=2500.0)
    assert timer.held[1] == {f"single {TARGETS[0]}", *(f"{t} in blocks" for t in TARGETS[:2])}
    # Those of the one that is behind are there to be measured, where they could be quicker than expected.
    assert {block.target for block in blocks} == set(TARGETS)
    known = finals.known_us()
    times = {t: [known[b.nodes, b.target] for b in blocks if b.target == t] for t in TARGETS[:2]}
    # The first target took 1000 µs as a whole here and when it was measured.
    pace = sum(times[TARGETS[1]]) / 1000.0
    assert sum(times[TARGETS[0]]) == pytest.approx(1100.0 * pace)


def test_target_slower_whole_than_in_blocks_is_timed_again() -> None:
    """Its first minute was a bad one for it."""
    unlucky = f"single {TARGETS[1]}"
    timer = StatedTimer({unlucky: (1300.0, *(850.0,) * 8), f"{TARGETS[1]} in blocks": (1020.0,)})
    finals, _ = _blocks(timer, slowest_us=2500.0)
    world = World(24, 3)
    costs = StatedCosts(world.truth, most=len(world.candidates))
    solution = world.search(costs).run(1, INFINITE)
    assert finals.refined(world.search(costs, deadline_s=0.0), solution, 1).name == unlucky
    assert sum(unlucky in held for held in timer.held) >= 4


def test_blocks_of_a_target_that_refuses_a_node_run_too() -> None:
    world = World(24, 3)
    refusing = TargetSpec(TARGETS[2], "graph", lambda index, node: "no" if node == 11 else None)
    able = [TargetSpec(target, "graph", lambda index, node: None) for target in TARGETS[:2]]
    world.candidates = enumerate_candidates(world.model, [*able, refusing])  # type: ignore[arg-type]
    timer = StatedTimer({})
    us = dict.fromkeys(TARGETS[:2], 1000.0)
    finals = Refinement(world.model, [], Constraints(), timer, us)
    finals.open((), lambda entries: ())
    estimates = Estimates(world.model.index)
    for target in us:
        estimates.learn(target, dict(enumerate(world.node_us[target])))
    finals.lay_out(world.candidates, estimates, us)
    assert f"{TARGETS[2]} in blocks" in timer.held[1]


def test_a_target_alone_is_not_laid_out() -> None:
    timer = StatedTimer({})
    world = World(24, 3)
    finals = Refinement(world.model, [], Constraints(), timer, {TARGETS[0]: 1000.0})
    finals.open((), lambda entries: ())
    estimates = Estimates(world.model.index)
    estimates.learn(TARGETS[0], dict(enumerate(world.node_us[TARGETS[0]])))
    assert finals.lay_out(world.candidates, estimates, {TARGETS[0]: 1000.0})
    assert not timer.held and not finals.known_us()


def test_second_search_is_judged_at_the_pace_of_its_promise() -> None:
    """The machine is twice as fast in comparisons; plans predicted before are still compared."""
    world = World(24, 3)
    specs = [TargetSpec(target, "graph", lambda index, node: None) for target in TARGETS]
    costs = StatedCosts(world.truth, most=len(world.candidates))
    solution = world.search(costs).run(2, INFINITE)
    slow = dict.fromkeys(TARGETS, solution.plans[0].objective_us * 1.1)
    timer = StatedTimer({f"single {t}": (us / 2,) * 9 for t, us in slow.items()})
    finals = Refinement(world.model, specs, Constraints(), timer, slow)
    finals.open((), lambda entries: ())
    assert timer.held[0] >= {f"single {target}" for target in TARGETS}
    finals.refined(world.search(costs, deadline_s=0.0), solution, 2)
    assert "searched 1" in timer.held[1]


class TrueTimer(PlanTimer):
    """Times plans as the world states: every partition, and 40 µs more for each where there are several."""

    def __init__(self, world: World) -> None:
        super().__init__(None, None, ignore)
        self._world = world
        self.held: list[int] = []

    def hold(self, newcomers: Sequence[TimedPlan], again: Sequence[TimedPlan] = (), **_: float) -> None:
        known = self.entries[:1] + [entry for entry in again if entry is not self.entries[0]]
        for entry in [*known, *newcomers]:
            parts = entry.plan.partitions
            steps_us = tuple(self._inside_us(p) + (40.0 if len(parts) > 1 else 0.0) for p in parts)
            entry.timings[len(self.held)] = PlanTiming((sum(steps_us),) * 8, steps_us, 0.0)
        baseline_us = [*known, *newcomers][0].latency_us
        for entry in [*known, *newcomers]:
            entry.baseline_ratios[len(self.held)] = [entry.latency_us / baseline_us] * 8
        self.entries.extend(newcomers)
        self.held.append(len(newcomers))

    def _inside_us(self, part: Candidate) -> float:
        return sum(self._world.node_us[part.target][i] for i in bits(part.nodes))


def _explored(world: World, profiled_us: Mapping[Target, Sequence[float]]) -> tuple[TrueTimer, int]:
    """The timer after the exploration, and how many costs were asked for."""
    timer = TrueTimer(world)
    whole_us = {target: sum(times) for target, times in world.node_us.items()}
    finals = Refinement(world.model, [], Constraints(), timer, whole_us)
    finals.open((), lambda entries: ())
    estimates = Estimates(world.model.index)
    for target, times in profiled_us.items():
        estimates.learn(target, dict(enumerate(times)))
    costs = StatedCosts(world.truth, most=len(world.candidates))
    blocks = finals.lay_out(world.candidates, estimates, whole_us)
    lazy = LazySearch(
        world.model.index,
        world.candidates,
        costs,  # type: ignore[arg-type]
        estimates,
        world.transitions,
        Constraints(),
        None,
        ignore,
        blocks=blocks,
    )
    lazy.corrections = finals.known_us()
    finals.explore(lazy)
    return timer, len(costs.asked)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_plans_timed_before_their_partitions_come_near_the_best(seed: int) -> None:
    world = World(48, seed)
    generator = random.Random(seed)
    # Profiles are of other moments, and divide a target's time among its nodes only roughly.
    paces = {target: generator.choice((0.8, 1.0, 1.4)) for target in TARGETS}
    profiled_us = {
        target: [paces[target] * us * generator.uniform(0.7, 1.4) for us in times]
        for target, times in world.node_us.items()
    }
    timer, asked = _explored(world, profiled_us)
    assert asked == 0
    best = min(entry.latency_us for entry in timer.entries)
    singles = min(sum(times) for times in world.node_us.values())
    stretches = [
        min(sum(times[start : start + 8]) for times in world.node_us.values())
        for start in range(0, 48, 8)
    ]
    # Most of what a mix of the stretches at which targets are good would gain, borders included.
    assert singles - best >= 0.7 * (singles - sum(stretches) - 40.0 * len(stretches))


def test_nothing_is_explored_where_one_target_is_best_everywhere() -> None:
    world = World(24, 3)
    best = [min(times) * 0.8 for times in zip(*world.node_us.values(), strict=True)]
    world.node_us[TARGETS[0]] = best
    timer, _ = _explored(world, world.node_us)
    # The single targets and the blocks.
    assert len(timer.held) == 2


def test_nearly_equal_single_targets_are_decided_by_more_builds() -> None:
    second = f"single {TARGETS[1]}"
    # Ahead in two builds of four, and behind by more in those that follow.
    swaying = StatedTimer({second: (960.0, 980.0, 1030.0, 985.0, 1060.0, 1070.0)})
    assert _refined(swaying, World(24, 3)).name != second
    assert len(swaying.held) == 6
    steady = StatedTimer({second: (960.0, 961.0, 962.0, 963.0)})
    assert _refined(steady, World(24, 3)).name == second
    assert len(steady.held) == 4

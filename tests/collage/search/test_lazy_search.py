"""Lazy measuring: the best plan of stated costs is found with few of them asked for."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from collage.costs.estimates import Estimates
from collage.partitioner.candidate import Candidate, Plan, bits
from collage.partitioner.cost import Cost, Infeasible, Measured
from collage.partitioner.errors import OutOfTimeError
from collage.partitioner.search.constraints import Budget, Constraints
from collage.partitioner.search.task import Solution
from collage.search.blocks import blocks
from collage.search.corrections import NO_CORRECTIONS, Corrections
from collage.search.lazy_search import WORTH_MEASURING, LazySearch
from collage.search.single_targets import SingleTargets
from tests.collage.stated_world import INFINITE, TARGETS, StatedCosts, World, chain, plain
from tests.partitioner.search.search_cases import search


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_the_plan_is_as_good_as_with_everything_measured(seed: int) -> None:
    world = World(48, seed)
    costs = StatedCosts(world.truth, most=len(world.candidates) // 4)
    found = world.search(costs).run(1, INFINITE).plans[0]
    truth = [world.truth(c) for c in world.candidates.candidates]
    everything = [cost.latency_us if isinstance(cost, Measured) else None for cost in truth]
    best = search(
        world.model.index, world.candidates.candidates, everything, transitions=world.transitions
    ).plans[0]
    # The luck of single measurements, which no profile can know, is not looked for.
    assert found.objective_us <= best.objective_us * 1.03
    assert len(costs.asked) <= len(world.candidates) // 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_target_without_a_profiler_is_learned_from_its_regions(seed: int) -> None:
    world = World(48, seed)
    costs = StatedCosts(world.truth, most=len(world.candidates) // 4)
    costs.measure([Candidate(world.model.index.all_nodes, target) for target in TARGETS])
    profiled = world.estimates(unprofiled=(TARGETS[2],))
    costs.measure(blocks(world.model.index, world.candidates.candidates, TARGETS[2], profiled))
    search = world.search(costs, unprofiled=(TARGETS[2],))
    found = search.run(1, INFINITE).plans[0]
    others = world.search(StatedCosts(world.truth, most=len(world.candidates))).run(1, INFINITE)
    assert found.objective_us <= others.plans[0].objective_us * 1.1


def test_target_without_a_profiler_is_expected_at_its_measured_latency() -> None:
    model = chain(8)
    fast, unprofiled = TARGETS[:2]
    estimates = Estimates(model.index)
    estimates.learn(fast, {i: 100.0 if i < 4 else 10.0 for i in range(8)})
    estimates.spread(unprofiled, 880.0)
    half = 0b1111
    assert 800.0 <= estimates.bound_us(half, unprofiled) < 840.0
    estimates.learn_region(unprofiled, half, 430.0)
    assert estimates.bound_us(half, unprofiled) == pytest.approx(430.0)
    assert estimates.bound_us(0b11110000, unprofiled) < 120.0


def test_region_faster_than_its_profile_lowers_all_other_estimates() -> None:
    """A whole model that was profiled while the machine was busy must not keep its parts unmeasured."""
    model = chain(8)
    estimates = Estimates(model.index)
    estimates.learn(TARGETS[0], dict.fromkeys(range(8), 100.0))
    half, quarter, rest = 0b1111, 0b11, 0b11110000
    before = {nodes: estimates.bound_us(nodes, TARGETS[0]) for nodes in (quarter, rest)}
    estimates.learn_region(TARGETS[0], half, 230.0)
    after = {nodes: estimates.bound_us(nodes, TARGETS[0]) for nodes in (quarter, rest)}
    assert after[quarter] == pytest.approx(before[quarter] - 100.0, abs=0.1)
    assert after[rest] == pytest.approx(before[rest] - 200.0, abs=0.1)


def test_many_slow_regions_outweigh_what_was_quick_elsewhere() -> None:
    model = chain(24)
    estimates = Estimates(model.index)
    estimates.learn(TARGETS[0], dict.fromkeys(range(24), 100.0))
    estimates.learn_region(TARGETS[0], 0b1111, 230.0)
    last = 0b11 << 22
    quick = estimates.bound_us(last, TARGETS[0])
    for width in range(3, 19):
        nodes = ((1 << width) - 1) << (24 - width)
        estimates.learn_region(TARGETS[0], nodes, 130.0 * width + 30.0)
    assert estimates.bound_us(last, TARGETS[0]) > 1.8 * quick
    assert estimates.bound_us(0b11, TARGETS[0]) < 0.8 * estimates.bound_us(last, TARGETS[0])


@pytest.mark.slow
def test_a_profile_taken_at_a_slow_moment_hides_nothing_for_good() -> None:
    """The whole of one target, and so its profile, took half as long again as its parts do."""
    world = World(48, 3)
    slow = TARGETS[1]
    everything = world.model.index.all_nodes

    def truth(candidate: Candidate) -> Measured:
        cost = world.truth(candidate)
        assert isinstance(cost, Measured)
        if candidate.target != slow:
            return Measured(cost.latency_us * 1.2)
        return Measured(cost.latency_us * (1.5 if candidate.nodes == everything else 1.0))

    prices = [truth(c).latency_us for c in world.candidates.candidates]
    best = search(
        world.model.index, world.candidates.candidates, prices, transitions=world.transitions
    ).plans[0]
    assert any(p.target == slow for p in best.plan.partitions)
    for target, factor in zip(TARGETS, (1.2, 1.5, 1.2), strict=True):
        world.node_us[target] = [us * factor for us in world.node_us[target]]
    costs = StatedCosts(truth, most=len(world.candidates) // 4)
    found = world.search(costs).run(1, INFINITE).plans[0]
    assert found.objective_us <= best.objective_us * 1.03


def test_whole_models_compare_as_they_did_in_turn() -> None:
    """One was measured at a moment half as fast: all that its profile says is halved, and the pace stays."""
    model = chain(8)
    fast, slow, other = TARGETS
    measured = dict(zip(TARGETS, (800.0, 1600.0, 1000.0), strict=True))
    costs = StatedCosts(lambda c: Measured(measured[c.target]), most=3)
    costs.measure([Candidate(model.index.all_nodes, target) for target in TARGETS])
    estimates = Estimates(model.index)
    for target, us in measured.items():
        estimates.learn(target, dict.fromkeys(range(8), us / 8))
    before = {target: estimates.bound_us(0b1111, target) for target in TARGETS}
    whole = SingleTargets(model.index, TARGETS, costs)  # type: ignore[arg-type]
    # The machine is twice as fast by then.
    corrected_us = whole.corrected_us({fast: 400.0, slow: 400.0, other: 500.0}, estimates)
    assert corrected_us == {fast: 800.0, slow: 800.0, other: 1000.0}
    assert estimates.bound_us(0b1111, slow) == pytest.approx(before[slow] - 400.0)
    assert all(estimates.bound_us(0b1111, t) == before[t] for t in (fast, other))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3])
def test_broken_coarse_estimates_leave_time_for_finer_plans(seed: int) -> None:
    """Large regions take longer than their nodes, and no profile knows."""
    world = World(48, seed)

    def truth(candidate: Candidate) -> Measured:
        cost = world.truth(candidate)
        assert isinstance(cost, Measured)
        count = len(bits(candidate.nodes))
        return Measured(cost.latency_us * (1.3 if 12 < count < 48 else 1.0))

    prices = [truth(c).latency_us for c in world.candidates.candidates]
    best = search(
        world.model.index, world.candidates.candidates, prices, transitions=world.transitions
    ).plans[0]
    costs = StatedCosts(truth, most=len(world.candidates) // 4)
    found = world.search(costs).run(1, INFINITE).plans[0]
    assert found.objective_us <= best.objective_us * 1.03


def _known(world: World, slow: Candidate) -> LazySearch:
    """A search that knows all costs, one of them measured when the machine was at half its pace."""

    def truth(candidate: Candidate) -> Cost:
        cost = world.truth(candidate)
        assert isinstance(cost, Measured)
        return Measured(cost.latency_us * 2.0) if plain(candidate) == slow else cost

    costs = StatedCosts(truth, most=len(world.candidates))
    costs.measure(world.candidates.candidates)
    return world.search(costs)


def test_region_is_not_estimated_slower_than_a_larger_one() -> None:
    world = World(24, 3)
    of_one = [plain(c) for c in world.candidates.candidates if c.target == TARGETS[0]]
    sizes = sorted({c.nodes for c in of_one}, key=int.bit_count)
    small = Candidate(next(n for n in sizes if n.bit_count() >= 8), TARGETS[0])
    larger = [n for n in sizes if n & small.nodes == small.nodes and n != small.nodes]
    expected = min(world.truth(Candidate(n, TARGETS[0])).latency_us for n in larger)  # type: ignore[union-attr]
    slow = world.truth(small).latency_us * 2.0  # type: ignore[union-attr]
    assert expected < slow
    lazy = _known(world, small)
    lazy.run(1, INFINITE)
    assert lazy.price_us(small) == expected


@pytest.mark.slow
def test_region_is_not_estimated_slower_than_its_parts_in_a_plan() -> None:
    world = World(24, 3)
    whole = Candidate(world.model.index.all_nodes, TARGETS[1])
    half = (1 << 12) - 1
    lazy = _known(world, whole)
    lazy.run(1, INFINITE)
    slow = lazy.price_us(whole)
    assert slow is not None
    parts_us = {(half, TARGETS[1]): slow / 4, (whole.nodes & ~half, TARGETS[1]): slow / 8}
    lazy.run(1, INFINITE, Corrections(parts_us))
    assert lazy.price_us(whole) == pytest.approx(slow * 3 / 8)
    # What ran inside a plan is as it was there.
    lazy.run(1, INFINITE, Corrections({**parts_us, (whole.nodes, TARGETS[1]): slow}))
    assert lazy.price_us(whole) == slow


def test_plan_of_the_search_is_predicted_at_the_searchs_cost() -> None:
    world = World(24, 1)
    lazy = world.search(StatedCosts(world.truth, most=len(world.candidates)))
    (scored,) = lazy.run(1, INFINITE).plans
    assert lazy.predict_us(scored.plan, NO_CORRECTIONS) == pytest.approx(scored.objective_us)
    parts = [replace(p, target=p.target.with_options(threads="1")) for p in scored.plan.partitions]
    assert lazy.predict_us(Plan(tuple(parts)), NO_CORRECTIONS) == INFINITE


def test_within_an_accuracy_budget_nothing_is_promised() -> None:
    world = World(24, 1)
    spent = Budget("error", (0.0,) * len(world.candidates), 1.0)
    bounded = Constraints(budgets=(spent,))
    lazy = world.search(StatedCosts(world.truth, most=len(world.candidates)), constraints=bounded)
    (scored,) = lazy.run(1, INFINITE).plans
    assert lazy.predict_us(scored.plan, NO_CORRECTIONS) == INFINITE


def test_partition_timed_inside_a_plan_is_not_measured_again() -> None:
    world = World(24, 3)
    costs = StatedCosts(world.truth, most=len(world.candidates))
    lazy = world.search(costs)
    best = min(world.candidates.candidates, key=lambda c: -c.nodes.bit_count())
    known = Corrections({(best.nodes, best.target): 1.0})
    assert lazy.run(1, INFINITE, known).plans[0].plan.partitions == (best,)
    assert plain(best) not in costs.asked


@pytest.mark.slow
def test_an_infeasible_region_is_never_in_the_plan() -> None:
    world = World(24, 3)
    bad = (1 << 10) | (1 << 11)

    def truth(candidate: Candidate) -> Cost:
        if candidate.target != TARGETS[0] and candidate.nodes & bad:
            return Infeasible("crash: it does")
        return world.truth(candidate)

    plan = world.search(StatedCosts(truth, most=len(world.candidates))).run(3, INFINITE)
    for scored in plan.plans:
        for part in scored.plan.partitions:
            assert part.target == TARGETS[0] or not part.nodes & bad


def test_nothing_is_measured_when_no_estimate_beats_the_best_known() -> None:
    world = World(24, 4)
    costs = StatedCosts(world.truth, most=len(TARGETS))
    whole = [Candidate(world.model.index.all_nodes, target) for target in TARGETS]
    costs.measure(whole)
    # A known plan that is better than any promise leaves nothing to look for.
    world.search(costs).run(1, 100.0)
    assert len(costs.asked) == len(TARGETS)


def test_out_of_time_returns_the_best_known_plan_with_its_bound() -> None:
    world = World(24, 5)
    costs = StatedCosts(world.truth, most=len(TARGETS))
    costs.measure([Candidate(world.model.index.all_nodes, target) for target in TARGETS])
    cheapest = min(cost.latency_us for cost in costs.asked.values() if isinstance(cost, Measured))
    solution = world.search(costs, deadline_s=time.monotonic() - 1).run(1, cheapest)
    assert len(solution.plans[0].plan.partitions) == 1
    assert solution.bound_us <= solution.plans[0].objective_us
    assert not solution.optimal or solution.bound_us >= solution.plans[0].objective_us * (
        1 - WORTH_MEASURING
    )


def test_out_of_time_with_nothing_known_still_gives_a_plan() -> None:
    world = World(16, 6)
    costs = StatedCosts(world.truth, most=len(world.candidates))
    solution = world.search(costs, deadline_s=time.monotonic() - 1).run(1, INFINITE)
    covered = 0
    for part in solution.plans[0].plan.partitions:
        covered |= part.nodes
    assert covered == world.model.index.all_nodes


@pytest.mark.parametrize(("left_s", "limit_s"), [(-9.0, 1.0), (4.0, 4.0), (None, None)])
def test_when_it_is_late_each_search_is_short(
    monkeypatch: pytest.MonkeyPatch, left_s: float | None, limit_s: float | None
) -> None:
    world = World(16, 6)
    monkeypatch.setattr("collage.search.lazy_search.time", SimpleNamespace(monotonic=lambda: 100.0))
    costs = StatedCosts(world.truth, most=len(world.candidates))
    lazy = world.search(costs, deadline_s=None if left_s is None else 100.0 + left_s)
    solve, given_s = lazy._searcher.solve, list[float | None]()

    def noted(*known: Any, time_limit_s: float | None = None, **more: Any) -> Solution:
        given_s.append(time_limit_s)
        return solve(*known, time_limit_s=time_limit_s, **more)

    monkeypatch.setattr(lazy._searcher, "solve", noted)
    assert lazy.solve().plans
    assert given_s == [limit_s]


def test_a_late_plan_is_better_than_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps to two budgets that pull apart is not found at once."""
    world = World(16, 1)
    monkeypatch.setattr("collage.search.lazy_search._LEAST_S", 0.0)
    index, candidates = world.model.index, world.candidates.candidates
    costs = StatedCosts(world.truth, most=len(candidates))
    costs.measure(candidates)
    chance = random.Random(1)
    one = tuple(chance.random() for _ in candidates)
    budgets = Budget("one", one, 0.9), Budget("other", tuple(1 - x for x in one), 1.3)
    limited = Constraints(budgets=budgets)
    lazy = world.search(costs, deadline_s=time.monotonic() - 1, constraints=limited)
    prices = [lazy.price_us(candidate) for candidate in candidates]
    solve = partial(
        search, index, candidates, prices, transitions=world.transitions, constraints=limited
    )
    with pytest.raises(OutOfTimeError, match="allow more time"):
        solve(time_limit_s=0.0)
    assert lazy.solve().plans[0].plan == solve().plans[0].plan


@pytest.mark.slow
def test_search_leaves_most_of_the_time_for_timing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(48, 0)
    now_s = [100.0]
    monkeypatch.setattr("collage.search.lazy_search.time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def slowly(candidate: Candidate) -> Cost:
        now_s[0] += 1.0
        return world.truth(candidate)

    costs = StatedCosts(slowly, most=len(world.candidates))
    costs.measure([Candidate(world.model.index.all_nodes, target) for target in TARGETS])
    now_s[0] = 100.0
    lazy = world.search(costs, deadline_s=112.0)
    lazy.run(1, INFINITE)
    assert now_s[0] == 103.0 and not lazy.out_of_time
    lazy.run(1, INFINITE)
    assert now_s[0] == 106.0


@pytest.mark.slow
def test_a_second_search_of_known_costs_asks_for_nothing() -> None:
    world = World(32, 7)
    costs = StatedCosts(world.truth, most=len(world.candidates))
    first = world.search(costs).run(2, INFINITE)
    asked = len(costs.asked)
    again = world.search(costs).run(2, INFINITE)
    assert len(costs.asked) == asked
    assert again.plans[0].objective_us == pytest.approx(first.plans[0].objective_us)


@pytest.mark.parametrize(
    ("deadline_s", "give_up_s", "known_us", "limit_s"),
    [
        (130.0, INFINITE, 50.0, 15.0),  # given up after twice as long, so by the deadline
        (90.0, INFINITE, 50.0, 1.0),
        (90.0, 120.0, INFINITE, 10.0),
        (None, INFINITE, 50.0, None),
        (130.0, INFINITE, INFINITE, None),
    ],
)
def test_measurement_may_take_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
    deadline_s: float | None,
    give_up_s: float,
    known_us: float,
    limit_s: float | None,
) -> None:
    monkeypatch.setattr("collage.search.lazy_search.time", SimpleNamespace(monotonic=lambda: 100.0))
    world = World(4, 0)
    lazy = world.search(StatedCosts(world.truth, most=99), deadline_s=deadline_s)
    lazy._give_up_s = give_up_s
    assert lazy._limit_s(known_us) == limit_s

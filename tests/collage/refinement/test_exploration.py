"""Plans that are timed before their partitions are measured: targets in blocks, and mixes of blocks."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from collage.costs.estimates import Estimates
from collage.events import ignore
from collage.partitioner.rules.target_spec import TargetSpec, enumerate_candidates
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.target import Target
from collage.refinement.comparisons import Comparisons
from collage.refinement.exploration import explore, lay_out
from collage.search.corrections import NO_CORRECTIONS
from collage.search.lazy_search import LazySearch
from tests.collage.refinement.stated_timers import StatedTimer, TrueTimer, laid_out
from tests.collage.stated_world import TARGETS, StatedCosts, World


def test_blocks_of_the_targets_that_are_near_run_in_turn() -> None:
    timer = StatedTimer({f"{TARGETS[0]} in blocks": (1100.0,)})
    comparisons, blocks = laid_out(timer, slowest_us=2500.0)
    assert timer.comparisons[1] == {f"single {TARGETS[0]}", *(f"{t} in blocks" for t in TARGETS[:2])}
    # Those of the one that is behind are there to be measured, where they could be quicker than expected.
    assert {block.target for block in blocks} == set(TARGETS)
    known = comparisons.corrected(NO_CORRECTIONS).partition_us
    times = {t: [known[b.nodes, b.target] for b in blocks if b.target == t] for t in TARGETS[:2]}
    # The first target took 1000 µs as a whole here and when it was measured.
    pace = sum(times[TARGETS[1]]) / 1000.0
    assert sum(times[TARGETS[0]]) == pytest.approx(1100.0 * pace)


def test_blocks_of_a_target_that_refuses_a_node_run_too() -> None:
    world = World(24, 3)
    refusing = TargetSpec(TARGETS[2], "graph", lambda index, node: "no" if node == 11 else None)
    able = [TargetSpec(target, "graph", lambda index, node: None) for target in TARGETS[:2]]
    world.candidates = enumerate_candidates(world.model, [*able, refusing])  # type: ignore[arg-type]
    timer = StatedTimer({})
    us = dict.fromkeys(TARGETS[:2], 1000.0)
    comparisons = Comparisons.of(world.model, [], Constraints(), timer, us)
    comparisons.open(())
    estimates = Estimates(world.model.index)
    for target in us:
        estimates.learn(target, dict(enumerate(world.node_us[target])))
    lay_out(comparisons, world.candidates, estimates, us)
    assert f"{TARGETS[2]} in blocks" in timer.comparisons[1]


@pytest.mark.parametrize(("reduced_us", "laid_out"), [(450.0, False), (800.0, True)])
def test_exact_targets_far_behind_a_reduced_one_are_not_laid_out(
    reduced_us: float, laid_out: bool
) -> None:
    timer, world = StatedTimer({f"single {TARGETS[2]}": (reduced_us,)}), World(24, 3)
    us = dict(zip(TARGETS, (1000.0, 1000.0, reduced_us), strict=True))
    comparisons = Comparisons.of(world.model, [], Constraints(), timer, us)
    comparisons.open(())
    exact_us = {target: us[target] for target in TARGETS[:2]}
    lay_out(comparisons, world.candidates, world.estimates(()), exact_us)
    assert (len(timer.comparisons) == 2) is laid_out


def test_a_target_alone_is_not_laid_out() -> None:
    timer = StatedTimer({})
    world = World(24, 3)
    comparisons = Comparisons.of(world.model, [], Constraints(), timer, {TARGETS[0]: 1000.0})
    comparisons.open(())
    estimates = Estimates(world.model.index)
    estimates.learn(TARGETS[0], dict(enumerate(world.node_us[TARGETS[0]])))
    comparisons, blocks = lay_out(comparisons, world.candidates, estimates, {TARGETS[0]: 1000.0})
    assert blocks
    assert not timer.comparisons and not comparisons.corrected(NO_CORRECTIONS).partition_us


def _explored(world: World, profiled_us: Mapping[Target, Sequence[float]]) -> tuple[TrueTimer, int]:
    """Comparisons before the search, and how many costs were asked for."""
    timer = TrueTimer(world)
    whole_us = {target: sum(times) for target, times in world.node_us.items()}
    comparisons = Comparisons.of(world.model, [], Constraints(), timer, whole_us)
    comparisons.open(())
    estimates = Estimates(world.model.index)
    for target, times in profiled_us.items():
        estimates.learn(target, dict(enumerate(times)))
    costs = StatedCosts(world.truth, most=len(world.candidates))
    comparisons, blocks = lay_out(comparisons, world.candidates, estimates, whole_us)
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
    explore(comparisons, lazy, comparisons.corrected(NO_CORRECTIONS))
    return timer, len(costs.asked)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_plans_timed_before_their_partitions_come_near_the_best(seed: int) -> None:
    world = World(48, seed)
    generator = random.Random(seed)
    # Profiles were taken at moments of their own, and share a target's time among its nodes by guess.
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
    assert len(timer.comparisons) == 2

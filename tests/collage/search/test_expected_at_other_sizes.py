"""What is known at other sizes orders and leaves out what is measured; a plan rests on measurements alone."""

from __future__ import annotations

import pytest

from collage.costs.estimates import Estimates
from collage.events import ignore
from collage.partitioner.candidate import Candidate
from collage.partitioner.cost import Measured
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.search.transition import Transitions
from collage.search.lazy_search import LazySearch
from tests.collage.stated_world import INFINITE, TARGETS, StatedCosts, World, chain, plain

FAST, SLOW = TARGETS[:2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_other_sizes_say_spares_measurements(seed: int) -> None:
    world = World(48, seed)
    candidates = world.candidates.candidates
    said = {}
    for candidate in candidates:
        cost = world.truth(candidate)
        assert isinstance(cost, Measured)
        said[candidate.nodes, candidate.target] = cost.latency_us
    blind = StatedCosts(world.truth, most=len(candidates))
    best = world.search(blind).run(1, INFINITE).plans[0]
    costs = StatedCosts(world.truth, most=len(blind.asked) - 5, at_other_sizes=said)
    found = world.search(costs).run(1, INFINITE).plans[0]
    assert found.objective_us <= best.objective_us
    assert {plain(partition) for partition in found.plan.partitions} <= costs.asked.keys()


def _chosen(slow_at_other_sizes_us: float | None) -> tuple[Candidate, list[Candidate]]:
    """The target of a whole model that takes 800 or 1,000 µs, of which the second looks like 400; what was measured."""
    model = chain(8)
    candidates = [Candidate(model.index.all_nodes, target) for target in (FAST, SLOW)]
    truth = {FAST: 800.0, SLOW: 1000.0}
    said = (
        {}
        if slow_at_other_sizes_us is None
        else {(model.index.all_nodes, SLOW): slow_at_other_sizes_us}
    )
    costs = StatedCosts(lambda c: Measured(truth[c.target]), most=2, at_other_sizes=said)
    estimates = Estimates(model.index)
    estimates.learn(FAST, dict.fromkeys(range(8), 100.0))
    estimates.learn(SLOW, dict.fromkeys(range(8), 50.0))
    search = LazySearch(
        model.index,
        CandidateSet.build(model.index, candidates),
        costs,
        estimates,
        Transitions(),
        Constraints(),
        None,
        ignore,
    )
    (chosen,) = search.run(1, INFINITE).plans[0].plan.partitions
    return chosen, list(costs.asked)


@pytest.mark.parametrize(
    ("said_us", "measured"),
    [
        (None, [SLOW, FAST]),  # by its profile it is the fastest
        (950.0, [FAST]),
        (500.0, [SLOW, FAST]),  # what is wrong costs a measurement, and no more
    ],
)
def test_what_is_slow_at_other_sizes_is_not_measured(
    said_us: float | None, measured: list[object]
) -> None:
    chosen, asked = _chosen(said_us)
    assert chosen.target == FAST and [candidate.target for candidate in asked] == measured

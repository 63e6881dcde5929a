"""Plans without search: what they give, that they can run, and where the RFC's search goes wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.search_scaling.dijkstra import dijkstra
from collage.partitioner.candidate import Candidate
from collage.partitioner.errors import NoPlanError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.plan_check import check_plan
from collage.partitioner.rules.target_spec import TargetSpec
from collage.partitioner.search.baselines import greedy, priority
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.search.transition import Transitions
from collage.partitioner.target import Target
from tests.partitioner.graphs import TextModel, names, text_model
from tests.partitioner.random_graphs import random_models
from tests.partitioner.search.search_cases import Case, cases, search

A, B, C = Target("alpha"), Target("beta"), Target("gamma")

CHAIN = text_model(
    "g (float[4] x) => (float[4] d) { a = Relu(x)  b = Exp(a)  c = Relu(b)  d = Neg(c) }"
).index
CROSSED = text_model(
    """g (float[4] x, float[4] y) => (float[4] c, float[4] d)
    { a = Relu(x)  b = Relu(y)  c = Exp(b)  d = Exp(a) }"""
).index


def taking(target: Target, *ops: str) -> TargetSpec:
    """A target that supports some operators."""

    def supports(index: GraphIndex, node: int) -> str | None:
        op = index.nodes[node].op_type
        return None if op in ops else f"{op} is not supported"

    return TargetSpec(target, "graph", supports)


def text(plan_of: Callable[[], object], index: GraphIndex) -> list[tuple[str, str]]:
    plan = plan_of()
    return [(names(index, p.nodes), p.target.backend) for p in plan.partitions]  # type: ignore[attr-defined]


ALL = ("Relu", "Exp", "Neg", "Add", "Concat", "ReduceSum")


def test_greedy_begins_with_the_largest_claim() -> None:
    specs = [taking(A, "Relu", "Neg"), taking(B, "Exp", "Relu"), taking(C, *ALL)]
    found = text(lambda: greedy(CHAIN, specs[:2]), CHAIN)
    assert found == [("Relu0 Exp1 Relu2", "beta"), ("Neg3", "alpha")]
    assert text(lambda: greedy(CHAIN, specs), CHAIN) == [("Relu0 Exp1 Relu2 Neg3", "gamma")]


def test_priority_gives_each_node_to_the_first_that_takes_it() -> None:
    specs = [taking(A, "Relu", "Neg"), taking(C, *ALL)]
    found = text(lambda: priority(CHAIN, specs), CHAIN)
    assert found == [("Relu0", "alpha"), ("Exp1", "gamma"), ("Relu2 Neg3", "alpha")]
    pinned = Constraints.parse(pins=["Neg=gamma"])
    found = text(lambda: priority(CHAIN, specs, pinned), CHAIN)
    assert found[-1] == ("Neg3", "gamma")


def test_a_node_that_nobody_takes_is_named() -> None:
    with pytest.raises(NoPlanError, match=r"'Neg3' \(Neg\).*alpha: Neg is not supported"):
        greedy(CHAIN, [taking(A, "Relu", "Exp")])


@pytest.mark.slow
@given(random_models(), st.lists(st.sets(st.sampled_from(ALL)), min_size=1, max_size=3))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_greedy_plans_can_run(model: TextModel, claims: list[set[str]]) -> None:
    specs = [taking(Target(f"t{i}"), *ops) for i, ops in enumerate(claims)]
    specs.append(taking(Target("rest"), *ALL))
    for plan in (greedy(model.index, specs), priority(model.index, specs)):
        check_plan(model.index, plan)


FREE = Transitions(default_call_us=0.0)


@pytest.mark.slow
@given(cases())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_dijkstra_without_pruning_is_never_better_than_search(case: Case) -> None:
    calls = Transitions(default_call_us=case.transitions.default_call_us)
    try:
        best = (
            search(case.index, case.candidates, case.cost_us, transitions=calls).plans[0].objective_us
        )
    except NoPlanError:
        return
    found = dijkstra(case.index, case.candidates, case.cost_us, transitions=calls, prune=False)
    if found.objective_us is not None:
        assert found.objective_us == pytest.approx(best)
    try:
        pruned = dijkstra(case.index, case.candidates, case.cost_us, transitions=calls)
    except NoPlanError:
        return
    if pruned.objective_us is not None:
        assert pruned.objective_us >= best - 1e-6 * best


def test_dijkstra_may_choose_partitions_that_wait_for_each_other() -> None:
    crossed = [Candidate(0b0101, A), Candidate(0b1010, B)]
    singles = [Candidate(1 << i, A) for i in range(4)]
    costs = [1.0, 1.0, 5.0, 5.0, 5.0, 5.0]
    found = dijkstra(CROSSED, [*crossed, *singles], costs, transitions=FREE, prune=False)
    assert found.candidates == (0, 1)
    assert found.objective_us is None
    assert search(CROSSED, [*crossed, *singles], costs, transitions=FREE).plans[0].objective_us == 11.0


def test_pruning_loses_small_candidates_inside_large_ones() -> None:
    candidates = [Candidate(0b1111, A), *(Candidate(1 << i, A) for i in range(4))]
    costs = [10.0, 1.0, 1.0, 1.0, 1.0]
    found = dijkstra(CHAIN, candidates, costs, transitions=FREE)
    assert (found.kept, found.objective_us) == (1, 10.0)
    assert dijkstra(CHAIN, candidates, costs, transitions=FREE, prune=False).objective_us == 4.0


def test_dijkstra_avoids_infeasible_ways_and_stops_at_its_bound() -> None:
    candidates = [Candidate(0b0011, A), Candidate(0b1100, A), Candidate(0b1111, B)]
    assert dijkstra(CHAIN, candidates, [None, 1.0, 9.0], transitions=FREE, prune=False).candidates == (
        2,
    )
    with pytest.raises(NoPlanError, match="without pruning"):
        dijkstra(CHAIN, candidates, [None, 1.0, None])
    assert dijkstra(CHAIN, candidates, [1.0, 1.0, 9.0], max_states=1).candidates == ()

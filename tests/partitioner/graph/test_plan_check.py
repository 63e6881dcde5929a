"""Plans that cannot run are refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.plan_check import PlanError, check_plan, execution_order
from collage.partitioner.search.cycle_cuts import cycles
from collage.partitioner.target import Target
from tests.partitioner.graphs import TextModel, text_model
from tests.partitioner.random_graphs import random_models
from tests.partitioner.search.brute_force import can_run

A = Target("alpha")

CROSSED = """g (float[4] x, float[4] y) => (float[4] c, float[4] d)
{ a = Relu(x)  b = Relu(y)  c = Exp(b)  d = Exp(a) }"""


def plan(*sets: int) -> Plan:
    """A plan with everything on one target."""
    return Plan(tuple(Candidate(nodes, A) for nodes in sets))


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ((0b0011, 0b0110, 0b1000), "node Relu1 .Relu. is in two partitions"),
        ((0b0011, 0b0100), "node Exp3 .Exp. is in no partition"),
        ((0b0101, 0b1010), "wait for each other"),
        ((0b0100, 0b0001, 0b0010, 0b1000), "partition 0 reads what a later one makes"),
        ((0b1111, 0), "empty"),
        ((0b11111,), "has not"),
        ((), "in no partition"),
    ],
)
def test_invalid_plan_is_refused_with_the_reason(sets: tuple[int, ...], said: str) -> None:
    index = text_model(CROSSED).index
    with pytest.raises(PlanError, match=said) as error:
        check_plan(index, plan(*sets))
    assert isinstance(error.value, BadInputError)


def test_a_plan_that_can_run_passes() -> None:
    index = text_model(CROSSED).index
    check_plan(index, plan(0b0001, 0b0010, 0b0100, 0b1000))
    check_plan(index, plan(0b0011, 0b1100))
    check_plan(index, plan(0b1111))


def test_order_begins_with_the_first_node_that_is_ready() -> None:
    index = text_model(CROSSED).index
    assert execution_order(index, [0b1000, 0b0100, 0b0010, 0b0001]) == [3, 2, 1, 0]
    assert execution_order(index, [0b1000, 0b0110, 0b0001]) == [2, 1, 0]
    assert execution_order(index, [0b0110, 0b1001]) == [1, 0]


@given(random_models(max_nodes=8), st.data())
@settings(max_examples=80, derandomize=True, deadline=None)
def test_order_and_rings_agree_with_running(model: TextModel, data: st.DataObject) -> None:
    index = model.index
    parts: dict[int, int] = {}
    for node in range(len(index.nodes)):
        part = data.draw(st.integers(0, 3))
        parts[part] = parts.get(part, 0) | 1 << node
    sets = list(parts.values())
    found = cycles(index, sets)
    assert bool(found) == (not can_run(index, sets))
    if not found:
        order = execution_order(index, sets)
        done = 0
        for position in order:
            assert not index.ancestors_of(sets[position]) & ~sets[position] & ~done
            done |= sets[position]
        return
    with pytest.raises(PlanError):
        execution_order(index, sets)
    for cycle in found:
        for (_, leaving), (entering, _) in itertools.pairwise((*cycle.legs, cycle.legs[0])):
            assert index.successors[leaving] >> entering & 1
        owners = {next(s for s in sets if s >> entry & 1) for entry, _ in cycle.legs}
        assert len(owners) == len(cycle.legs)

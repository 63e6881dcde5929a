"""Local moves give only plans that can run, and undo each other."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.backends.quantization.float_nodes import keeping, kept_nodes
from collage.partitioner.candidate import Candidate, Plan, bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.plan_check import check_plan
from collage.partitioner.graph.sub_graph import SubGraph
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.target import Target
from collage.refinement.branches import arms
from collage.refinement.local_moves import KINDS, LocalMoves, Move
from tests.partitioner.graphs import TextModel, names, text_model
from tests.partitioner.random_graphs import random_models

A, B, C = (Target.parse(name) for name in ("null", "simulated", "torch"))


def _chain(length: int) -> GraphIndex:
    steps = " ".join(f"v{i} = Relu({f'v{i - 1}' if i else 'x'})" for i in range(length))
    return text_model(f"g (float[4] x) => (float[4] v{length - 1}) {{ {steps} }}").index


def _moves(index: GraphIndex, refused: dict[tuple[int, Target], str] | None = None) -> LocalMoves:
    return LocalMoves(index, CandidateSet.build(index, [], refused), (A, B))


def _plan(*parts: tuple[int, Target]) -> Plan:
    return Plan(tuple(Candidate(nodes, target) for nodes, target in parts))


def _shown(index: GraphIndex, plan: Plan | None) -> list[str]:
    assert plan is not None
    return [f"{p.target}: {names(index, p.nodes)}" for p in plan.partitions]


def test_a_border_moves_by_nodes_both_ways() -> None:
    index = _chain(6)
    moves, plan = _moves(index), _plan((0b000111, A), (0b111000, B))
    forwards = moves.apply(plan, Move("border", 3, 2, "node", A))
    back = moves.apply(plan, Move("border", 3, -1, "node", A))
    assert _shown(index, forwards) == ["null: Relu0 Relu1 Relu2 Relu3 Relu4", "simulated: Relu5"]
    assert _shown(index, back) == ["null: Relu0 Relu1", "simulated: Relu2 Relu3 Relu4 Relu5"]
    assert moves.apply(plan, Move("border", 3, 4, "node", A)) is None


def test_the_border_nearest_to_the_place_is_meant() -> None:
    index = _chain(6)
    plan = _plan((0b000011, A), (0b001100, B), (0b110000, A))
    moved = _moves(index).apply(plan, Move("border", 5, -1, "node", A))
    assert _shown(index, moved) == ["null: Relu0 Relu1", "simulated: Relu2", "null: Relu3 Relu4 Relu5"]


def test_neighbors_merge_on_the_target_of_the_move() -> None:
    index = _chain(4)
    plan = _plan((0b0011, A), (0b0100, B), (0b1000, A))
    merged = _moves(index).apply(plan, Move("merge", 2, 1, "cut", B))
    assert _shown(index, merged) == ["simulated: Relu0 Relu1 Relu2", "null: Relu3"]


def test_a_run_between_two_cuts_is_split_off() -> None:
    index = _chain(5)
    split = _moves(index).apply(_plan((0b11111, A)), Move("split", 1, 2, "cut", B))
    assert _shown(index, split) == ["null: Relu0", "simulated: Relu1 Relu2", "null: Relu3 Relu4"]
    tail = _moves(index).apply(_plan((0b11111, A)), Move("split", 3, 4, "cut", B))
    assert _shown(index, tail) == ["null: Relu0 Relu1 Relu2", "simulated: Relu3 Relu4"]


def test_no_target_is_given_what_it_refuses() -> None:
    index = _chain(4)
    moves = _moves(index, {(3, B): "no"})
    plan = _plan((0b0011, A), (0b1100, A))
    assert moves.apply(plan, Move("retarget", 3, 1, "cut", B)) is None
    assert (
        _shown(index, moves.apply(plan, Move("retarget", 0, 1, "cut", B)))[0]
        == "simulated: Relu0 Relu1"
    )
    assert moves.apply(plan, Move("retarget", 0, 1, "cut", C)) is None


def test_forbidden_moves_are_not_proposed() -> None:
    index = _chain(4)
    at_most_one = LocalMoves(
        index, CandidateSet.build(index, []), (A, B), lambda plan: len(plan.partitions) < 2
    )
    plan = _plan((0b1111, A))
    assert at_most_one.apply(plan, Move("split", 2, 1, "cut", B)) is None
    assert at_most_one.apply(plan, Move("retarget", 2, 1, "cut", B)) is not None


def test_moves_that_would_make_a_cycle_are_not_proposed() -> None:
    model = text_model("g (float[4] x) => (float[4] c) { a = Relu(x) b = Exp(a) c = Add(a, b) }")
    plan = _plan((0b001, A), (0b010, B), (0b100, A))
    # The first and the last partition are neighbors, and what lies between waits for both.
    moves = _moves(model.index)
    found = [moves.apply(plan, Move("merge", where, 1, "cut", A)) for where in range(3)]
    assert all(p is None or len(p.partitions) == 2 for p in found)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(model=random_models(), data=st.data())
def test_every_plan_that_moves_reach_can_run(model: TextModel, data: st.DataObject) -> None:
    index = model.index
    count = len(index.nodes)
    refused = data.draw(st.sets(st.tuples(st.integers(0, count - 1), st.just(B)), max_size=3))
    candidates = CandidateSet.build(index, [], dict.fromkeys(refused, "no"))
    tunable = {A: {"mode": ("fast", "slow")}, B: {"mode": ("fast",)}}
    moves = LocalMoves(index, candidates, (A, B, C), tunable=tunable)
    plan = _plan((index.all_nodes, A))
    for _ in range(12):
        move = data.draw(
            st.builds(
                Move,
                st.sampled_from(KINDS),
                st.integers(0, count - 1),
                st.sampled_from((-4, -2, -1, 1, 2, 4)),
                st.sampled_from(("node", "cut")),
                st.sampled_from((A, B, C)),
                st.sampled_from((("mode", "fast"), ("mode", "slow"))),
            )
        )
        changed = moves.apply(plan, move)
        if changed is None:
            continue
        check_plan(index, changed)
        assert {(p.nodes, p.target) for p in changed.partitions} != {
            (p.nodes, p.target) for p in plan.partitions
        }
        for node, target in refused:
            assert all(
                not p.nodes >> node & 1
                for p in changed.partitions
                if p.target.backend == target.backend
            )
        plan = changed


TUNABLE = {A: {"threads": ("1",), "mode": ("fast", "slow")}}


def _fork_model() -> GraphIndex:
    """A stem, two arms of two convolutions each, a join and a tail."""
    return text_model(
        """g (float[1,1,4,4] x) => (float[1,1,4,4] y)
        <float[1,1,1,1] w = {2.0}> {
            a = Relu(x)
            b = Conv(a, w) c = Conv(b, w)
            d = Conv(a, w) e = Conv(d, w)
            s = Add(c, e)
            y = Relu(s)
        }"""
    ).index


def test_an_option_is_set_and_left_open_again() -> None:
    index = _chain(4)
    moves = LocalMoves(index, CandidateSet.build(index, []), (A, B), tunable=TUNABLE)
    plan = _plan((0b0011, A), (0b1100, B))
    fast = moves.apply(plan, Move("option", 0, option=("mode", "fast")))
    assert _shown(index, fast) == ["null -mode=fast: Relu0 Relu1", "simulated: Relu2 Relu3"]
    assert fast is not None
    single = moves.apply(fast, Move("option", 1, option=("threads", "1")))
    assert _shown(index, single)[0] == "null -mode=fast -threads=1: Relu0 Relu1"
    assert _shown(index, moves.apply(fast, Move("option", 1, option=("mode", "fast")))) == _shown(
        index, plan
    )
    assert moves.apply(plan, Move("option", 3, option=("mode", "fast"))) is None  # b has no such option
    assert moves.apply(fast, Move("retarget", 0, target=B)) is not None


def test_option_moves_begin_with_the_largest_partition() -> None:
    index = _chain(6)
    tunable = {A: {"threads": ("1", "2"), "fast": ("yes",)}, B: {"fast": ("yes",)}}
    moves = LocalMoves(index, CandidateSet.build(index, []), (A, B), tunable=tunable)
    plan = _plan((0b000011, B), (0b111100, A.with_options(threads="2")))
    found = moves.settable(plan)
    assert [(move.where, move.option) for move in found] == [
        (2, ("fast", "yes")),
        (2, ("threads", "1")),
        (0, ("fast", "yes")),
    ]
    assert _shown(index, moves.apply(plan, found[1]))[1] == "null -threads=1: Relu2 Relu3 Relu4 Relu5"
    assert _shown(index, moves.apply(plan, found[2]))[0] == "simulated -fast=yes: Relu0 Relu1"


def test_arms_of_a_join_fork_onto_half_of_the_threads() -> None:
    index = _fork_model()
    moves = LocalMoves(index, CandidateSet.build(index, []), (A, B), tunable=TUNABLE, threads=2)
    assert "fork" in moves.kinds
    whole = _plan((index.all_nodes, A))
    forked = moves.apply(whole, Move("fork", 5))
    assert forked is not None and forked.lanes == 2
    assert _shown(index, forked) == [
        "null: Relu0",
        "null -threads=1: Conv1 Conv2",
        "null -threads=1: Conv3 Conv4",
        "null: Add5 Relu6",
    ]
    on_b = _plan((index.all_nodes, B))
    assert moves.apply(on_b, Move("fork", 5)) is None  # b's threads cannot be set
    merged = moves.apply(forked, Move("merge", 3, target=A))
    assert merged is not None and merged.lanes == 1, "nothing is left that could run at once"


def test_no_fork_where_there_is_nothing_to_run_at_once() -> None:
    chain, wide = _chain(4), _fork_model()
    for index, threads in ((chain, 2), (wide, 1)):
        moves = LocalMoves(index, CandidateSet.build(index, []), (A,), tunable=TUNABLE, threads=threads)
        assert "fork" not in moves.kinds


@pytest.mark.slow
@given(random_models())
@settings(max_examples=60, deadline=None)
def test_arms_wait_for_nobody(model: TextModel) -> None:
    index = model.index
    for join in range(len(index.nodes)):
        found = arms(index, index.all_nodes, join)
        for one in found:
            assert SubGraph(index, one).is_convex
            for other in found:
                if one != other:
                    assert not one & other
                    assert not any(index.descendants[i] & other for i in bits(one))


IDENTITY = "<float[2, 2] w = {1, 0, 0, 1}>"


def test_float_nodes_inside_int8_stay_float_after_a_move() -> None:
    steps = " ".join(f"v{i + 1} = MatMul(v{i}, w)" for i in range(8))
    index = text_model(f"g (float[2, 2] v0) => (float[2, 2] v8) {IDENTITY} {{ {steps} }}").index
    int8, plain = Target.parse("openvino -quant=static_int8"), Target.parse("openvino")
    moves = LocalMoves(index, CandidateSet.build(index, []), (plain, int8))
    plan = _plan((0b0000_1111, plain), (0b1111_0000, keeping(int8, 0b1111_0000, 0b0110_0000)))
    shifted = moves.apply(plan, Move("border", 4, -2, "node"))
    assert shifted is not None
    part = shifted.partitions[1]
    assert part.nodes == 0b1111_1100
    assert kept_nodes(part.target, part.nodes) == 0b0110_0000
    given = moves.apply(plan, Move("retarget", 6, 1, "cut", plain))
    assert given is not None and all(p.target == plain for p in given.partitions)


def test_a_piece_without_anything_int8_goes_to_the_float_target() -> None:
    model = text_model(
        f"g (float[2, 2] x) => (float[2, 2] c) {IDENTITY} {{ a = MatMul(x, w) b = Relu(a) c = Exp(b) }}"
    )
    int8, plain = Target.parse("openvino -quant=static_int8"), Target.parse("openvino")
    moves = LocalMoves(model.index, CandidateSet.build(model.index, []), (plain, int8))
    split = moves.apply(_plan((0b111, int8)), Move("split", 0, 1, "cut", int8))
    assert split is not None
    assert [str(p.target) for p in split.partitions] == ["openvino -quant=static_int8", "openvino"]


def test_a_target_that_was_given_with_float_nodes_can_be_moved() -> None:
    steps = " ".join(f"v{i + 1} = MatMul(v{i}, w)" for i in range(4))
    index = text_model(f"g (float[2, 2] v0) => (float[2, 2] v4) {IDENTITY} {{ {steps} }}").index
    given = Target.parse("openvino -float=0 -quant=static_int8")
    moves = LocalMoves(
        index, CandidateSet.build(index, []), (given,), tunable={given: {"threads": ("1",)}}
    )
    changed = moves.apply(_plan((0b1111, given)), Move("option", 0, option=("threads", "1")))
    assert changed is not None
    assert [str(p.target) for p in changed.partitions] == [
        "openvino -float=0 -quant=static_int8 -threads=1"
    ]

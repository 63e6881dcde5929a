"""What a plan must be beside fast."""

from __future__ import annotations

from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.target import Target
from collage.refinement.local_moves import LocalMoves, Move
from collage.search.fixed_plans import joined, sensible
from tests.partitioner.graphs import text_model

NCNN, MNN = Target("ncnn"), Target("mnn")
INDEX = text_model(
    "g (float[1,4] x) => (float[1,4] c) { a = Relu (x) b = Dropout (a) c = Sigmoid (b) }"
).index


def _plan(*parts: tuple[int, Target]) -> Plan:
    return Plan(tuple(Candidate(nodes, target) for nodes, target in parts))


def test_plan_with_a_partition_refused_as_a_whole_is_dropped() -> None:
    assert not sensible(INDEX, _plan((0b001, MNN), (0b010, NCNN), (0b100, MNN)))
    assert sensible(INDEX, _plan((0b001, MNN), (0b110, NCNN)))
    assert sensible(INDEX, _plan((0b001, NCNN), (0b010, MNN), (0b100, NCNN)))


def test_neighbors_on_one_target_are_joined_where_they_can_run() -> None:
    text = "g (float[4] x) => (float[4] d) { a = Relu (x) b = Exp (a) c = Abs (b) d = Add (a, c) }"
    index = text_model(text).index
    assert joined(index, _plan((0b0001, MNN), (0b0010, MNN), (0b1100, MNN))) == Plan(
        (Candidate(0b1111, MNN, "joined"),)
    )
    halves = joined(index, _plan((0b0001, NCNN), (0b0010, MNN), (0b0100, MNN), (0b1000, NCNN)))
    # The first and the last feed each other too, but what is between them would wait for both.
    assert [(p.nodes, p.target) for p in halves.partitions] == [
        (0b0001, NCNN),
        (0b0110, MNN),
        (0b1000, NCNN),
    ]
    apart = _plan((0b0011, MNN), (0b1100, MNN.with_options(threads="1")))
    assert joined(index, apart) == apart


def test_nodes_of_joined_partitions_that_are_float_stay_float() -> None:
    int8 = Target.parse("openvino -quant=static_int8")
    parts = [(0b001, int8), (0b110, int8.with_options(float="1"))]
    (whole,) = joined(INDEX, _plan(*parts)).partitions
    assert (whole.nodes, whole.target) == (0b111, int8.with_options(float="2"))


def test_no_local_move_gives_a_target_what_it_refuses_as_a_whole() -> None:
    def moved(step: int, where: int) -> Plan | None:
        moves = LocalMoves(
            INDEX, CandidateSet.build(INDEX, []), (MNN, NCNN), lambda plan: sensible(INDEX, plan)
        )
        return moves.apply(_plan((0b111, MNN)), Move("split", where, step, target=NCNN))

    assert moved(1, 1) is None
    split = moved(2, 1)
    assert split is not None
    assert [(p.nodes, p.target) for p in split.partitions] == [(0b001, MNN), (0b110, NCNN)]

"""Candidates as runs of a line equal their sets of nodes."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.partitioner.candidate import Candidate, bits
from collage.partitioner.graph.sub_graph import SubGraph
from collage.partitioner.search.candidate_arrays import CandidateArrays
from collage.partitioner.target import Target
from tests.partitioner.graphs import TextModel, text_model
from tests.partitioner.random_graphs import random_models

A = Target("alpha")

INTERLEAVED = """g (float[4] x) => (float[4] z) {
    a1 = Relu(x)  b1 = Exp(x)  a2 = Relu(a1)  b2 = Exp(b1)  a3 = Relu(a2)  b3 = Exp(b2)  z = Add(a3, b3) }"""


def runs_of(structure: CandidateArrays, candidate: int) -> list[tuple[int, int]]:
    own = structure.run_owner == candidate
    return list(zip(structure.run_start[own].tolist(), structure.run_end[own].tolist(), strict=True))


def test_the_line_finishes_a_branch_when_the_model_does_not() -> None:
    index = text_model(INTERLEAVED).index
    branches = [Candidate(0b0010101, A), Candidate(0b0101010, A), Candidate(0b1000000, A)]
    structure = CandidateArrays.build(index, branches)
    assert structure.run_count.tolist() == [1, 1, 1]
    assert sorted(runs_of(structure, 0) + runs_of(structure, 1)) == [(0, 3), (3, 6)]


@given(random_models(), st.data())
@settings(max_examples=60, derandomize=True, deadline=None)
def test_runs_and_counts_are_those_of_the_sets(model: TextModel, data: st.DataObject) -> None:
    index = model.index
    sets = data.draw(st.lists(st.integers(1, index.all_nodes), min_size=1, max_size=6))
    structure = CandidateArrays.build(index, [Candidate(nodes, A) for nodes in sets])
    placed: set[int] = set()
    for node in structure.line.tolist():
        assert set(bits(index.predecessors[node])) <= placed
        placed.add(node)
    for number, nodes in enumerate(sets):
        runs = runs_of(structure, number)
        assert {int(structure.line[p]) for start, end in runs for p in range(start, end)} == set(
            bits(nodes)
        )
        assert all(before[1] < after[0] for before, after in itertools.pairwise(runs))
        made_outside = [v for v in SubGraph(index, nodes).inputs if v in index.producer]
        assert structure.input_count[number] == len(made_outside)
    for node in range(len(index.nodes)):
        assert structure.holds(node).tolist() == [bool(nodes >> node & 1) for nodes in sets]
    some = np.arange(0, len(sets), 2)
    covered = 0
    for number in some.tolist():
        covered |= sets[number]
    assert structure.uncovered(some) == bits(index.all_nodes & ~covered)

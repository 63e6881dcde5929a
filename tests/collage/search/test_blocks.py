"""Where blocks end, and what regions made up of them take, by what those and whole models took in turn."""

from __future__ import annotations

import pytest

from collage.costs.estimates import Estimates
from collage.partitioner.candidate import Candidate, bits
from collage.partitioner.rules.target_spec import TargetSpec, enumerate_candidates
from collage.partitioner.target import Target
from collage.search.blocks import layouts, unions
from tests.partitioner.graphs import text_model

ONE, TWO = Target("one"), Target("two")
INDEX = text_model(
    "g (float[4] x) => (float[4] d) { a = Relu (x) b = Exp (a) c = Relu (b) d = Exp (c) }"
).index
WHOLE = 0b1111


def test_regions_of_blocks_take_their_share_of_the_joint_saving() -> None:
    blocks = [Candidate(nodes, ONE) for nodes in (0b1, 0b10, 0b1100)]
    taken_us = {(0b1, ONE): 100.0, (0b10, ONE): 200.0, (0b1100, ONE): 300.0, (WHOLE, ONE): 480.0}
    regions = [Candidate(nodes, ONE) for nodes in (0b10, 0b11, 0b111, 0b1110, WHOLE)]
    found = unions(INDEX, regions, blocks, taken_us)
    # All three joined, which is two joints, are a fifth faster; one joint is worth a tenth.
    assert [found.get(region) for region in regions] == [
        pytest.approx(200.0),
        pytest.approx(270.0),
        None,  # it cuts the last block
        pytest.approx(450.0),
        pytest.approx(480.0),
    ]


def test_blocks_of_a_target_that_does_not_take_all_add_up() -> None:
    blocks = [Candidate(0b1, TWO), Candidate(0b10, TWO), Candidate(0b1100, ONE)]
    taken_us = {(0b1, TWO): 100.0, (0b10, TWO): 200.0}
    regions = [Candidate(0b11, TWO), Candidate(0b11, ONE), Candidate(0b1100, ONE)]
    # What was not timed is not known.
    assert unions(INDEX, regions, blocks, taken_us) == {regions[0]: 300.0}


def blocks_of(*node_us: list[float]) -> list[list[list[int]]]:
    """Per target the nodes of its blocks, on convolutions that are each followed by a Relu."""
    count = len(node_us[0]) // 2
    steps = [f"c{i} = Conv ({f'r{i - 1}' if i else 'x'}, w) r{i} = Relu (c{i})" for i in range(count)]
    shape = "float[1, 1, 4, 4]"
    model = text_model(
        f"g ({shape} x, float[1, 1, 1, 1] w) => ({shape} r{count - 1}) {{ {' '.join(steps)} }}"
    )
    targets = (ONE, TWO)[: len(node_us)]
    specs = [TargetSpec(target, "graph", lambda index, node: None) for target in targets]
    candidates = enumerate_candidates(model, specs)  # type: ignore[arg-type]
    estimates = Estimates(model.index)
    for target, times_us in zip(targets, node_us, strict=True):
        estimates.learn(target, dict(enumerate(times_us)))
    plans = layouts(model.index, candidates.candidates, estimates)
    return [sorted(bits(part.nodes) for part in plans[target].partitions) for target in targets]


def test_blocks_end_where_another_target_becomes_the_best() -> None:
    quick, slow = 100.0, 300.0
    first = [quick] * 4 + [slow] * 2 + [quick] * 10
    second = [slow] * 4 + [quick] * 2 + [slow] * 10
    for found in blocks_of(first, second):
        borders = {nodes[0] for nodes in found}
        assert {4, 6} <= borders
        assert all(border % 2 == 0 for border in borders), "a convolution without its Relu"


def test_blocks_of_one_target_are_of_about_equal_length() -> None:
    (found,) = blocks_of([90.0, 10.0] * 36)
    assert 8 <= len(found) <= 16
    assert max(map(len, found)) <= 3 * min(map(len, found))
    assert all(nodes[0] % 2 == 0 for nodes in found), "a convolution without its Relu"


def test_an_operator_longer_than_a_block_keeps_its_relu() -> None:
    (found,) = blocks_of([90.0, 10.0] * 3 + [5000.0, 100.0] + [90.0, 10.0] * 3)
    assert any({6, 7} <= set(nodes) for nodes in found)

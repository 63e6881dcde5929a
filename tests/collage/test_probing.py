"""What regions made up of blocks take, by what those and whole models took in turn."""

from __future__ import annotations

import pytest

from collage.probing import unions
from partitioner.candidate import Candidate
from partitioner.target import Target
from tests.partitioner.graphs import text_model

ONE, TWO = Target("one"), Target("two")
INDEX = text_model(
    "g (float[4] x) => (float[4] d) { a = Relu (x) b = Exp (a) c = Relu (b) d = Exp (c) }"
).index
WHOLE = 0b1111


def test_regions_of_blocks_take_their_share_of_what_joining_all_of_them_saves() -> None:
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

"""What blocks of a mix become."""

from __future__ import annotations

import numpy as np
import pytest

from collage.accuracy.error_model import MIXED_SHARE, Block, fastest_mix, time_us
from collage.accuracy.mix_partitions import MixPartition, mixable_pairs, partitions_of
from collage.partitioner.target import Target

FLOAT, INT8, BF16, BF16_INT8, OTHER = (
    Target.parse(text)
    for text in (
        "openvino",
        "openvino -quant=static_int8",
        "openvino -precision=bf16",
        "openvino -precision=bf16 -quant=static_int8",
        "onnxruntime",
    )
)
TARGETS = (FLOAT, INT8, BF16, BF16_INT8, OTHER)
BLOCKS = [1 << i for i in range(6)]


def test_only_targets_that_differ_in_the_file_go_inside() -> None:
    assert mixable_pairs(TARGETS) == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert not mixable_pairs((OTHER, INT8))
    weights = Target.parse("openvino -quant=weights_int8")
    assert mixable_pairs((FLOAT, INT8, weights)) == {(0, 1), (1, 0), (0, 2), (2, 0)}
    dynamic = Target.parse("onnxruntime -quant=dynamic_int8")
    assert not mixable_pairs((OTHER, dynamic))


@pytest.mark.parametrize(
    ("chosen", "parts"),
    [
        ((0, 1, 0, 0, 1, 1), [MixPartition(0b111111, 1, 0b001101)]),
        (
            (1, 0, 2, 3, 3, 2),
            [MixPartition(0b000011, 1, 0b000010), MixPartition(0b111100, 3, 0b100100)],
        ),
        (
            (4, 4, 1, 4, 0, 0),
            [
                MixPartition(0b11, 4),
                MixPartition(0b100, 1),
                MixPartition(0b1000, 4),
                MixPartition(0b110000, 0),
            ],
        ),
        ((0, 0, 0, 0, 0, 0), [MixPartition(0b111111, 0)]),
    ],
)
def test_neighbors_that_can_be_one_partition_are_one(
    chosen: tuple[int, ...], parts: list[MixPartition]
) -> None:
    found = partitions_of(zip(BLOCKS, chosen, strict=True), TARGETS, mixable_pairs(TARGETS))
    assert found == parts


def test_two_kinds_of_int8_are_never_one_partition() -> None:
    targets = (FLOAT, INT8, Target.parse("openvino -quant=weights_int8"))
    found = partitions_of(zip(BLOCKS, (1, 0, 2, 0, 0, 1), strict=True), targets, mixable_pairs(targets))
    assert [(part.target, part.others) for part in found] == [(1, 0b10), (2, 0b11000), (1, 0)]


def test_the_target_of_a_part_says_which_nodes_stay_float() -> None:
    assert (
        str(MixPartition(0b1111_0000, 1, 0b1011_0000).on(TARGETS))
        == "openvino -float=0-1,3 -quant=static_int8"
    )
    assert MixPartition(0b1111, 0).on(TARGETS) == FLOAT


def test_blocks_stay_apart_where_they_shall() -> None:
    blocks = list(zip(BLOCKS, (0, 0, 1, 1, 0, 1), strict=True))
    found = partitions_of(blocks, TARGETS, frozenset(), apart=[1])
    assert found == [
        MixPartition(0b11, 0),
        MixPartition(0b100, 1),
        MixPartition(0b1000, 1),
        MixPartition(0b10000, 0),
        MixPartition(0b100000, 1),
    ]


def test_a_change_of_numbers_inside_costs_a_part_of_a_border() -> None:
    inside = mixable_pairs(TARGETS)
    blocks = [Block(1 << i, (10.0, 6.0, 6.0), 8.0, inside) for i in range(3)]
    assert time_us(blocks, (0, 1, 1)) == pytest.approx(22.0 + 8.0 * MIXED_SHARE)
    assert time_us(blocks, (0, 2, 2)) == pytest.approx(22.0 + 8.0)
    # Of two equal targets the one within the partition is taken for the middle block alone.
    shares = [[0.0, 9.0, 9.0], [0.0, 1.0, 1.0], [0.0, 9.0, 9.0]]
    assert fastest_mix(blocks, np.array(shares), 2.0) == (0, 0, 0)
    cheap = [Block(1 << i, (10.0, 5.0, 5.0), 8.0, inside) for i in range(3)]
    assert fastest_mix(cheap, np.array(shares), 2.0) == (0, 1, 0)

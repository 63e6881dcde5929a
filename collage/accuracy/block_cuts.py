"""Where a model is cut into blocks, and what these take by profiles.

Terms as in `collage.accuracy.error_model`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from collage.accuracy.error_model import Block
from collage.accuracy.mix_partitions import MixablePairs
from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.linear_order import Line, line

FIRST_BLOCKS = 16
"""Blocks that a search begins with, at the most."""

_CALL_US, _US_PER_MIB = 40.0, 100.0


def whole_layers(index: GraphIndex) -> Line:
    """The model's line, without cuts before a normalization, which runtimes fold into the node before."""
    laid = line(index, index.all_nodes)
    ops = [*(index.nodes[node].op_type for node in laid.order), ""]
    return replace(laid, cuts=tuple(cut for cut in laid.cuts if ops[cut] != "BatchNormalization"))


def first_cuts(laid: Line, node_us: Sequence[float], count: int = FIRST_BLOCKS) -> tuple[int, ...]:
    """Cuts of a line into runs of about equal time."""
    spent = spent_us(laid, node_us)
    cuts = [0]
    for number in range(1, count):
        wanted = spent[-1] * number / count
        nearest = min(laid.cuts, key=lambda position: abs(spent[position] - wanted))
        if cuts[-1] < nearest < len(laid.order):
            cuts.append(nearest)
    return (*cuts, len(laid.order))


def spent_us(laid: Line, node_us: Sequence[float]) -> list[float]:
    """Time of a line before each position, the end included."""
    return [0.0, *itertools.accumulate(node_us[node] for node in laid.order)]


def blocks_between(
    index: GraphIndex,
    laid: Line,
    cuts: Sequence[int],
    times_us: Sequence[Sequence[float]],
    inside: MixablePairs,
) -> list[Block]:
    """The blocks between cuts.

    Args:
        index: the graph.
        laid: its line.
        cuts: positions in it, both ends included.
        times_us: per target the time of each node in context.
        inside: pairs of targets that go into one partition.
    """
    before, blocks = 0, []
    for start, end in itertools.pairwise(cuts):
        nodes = laid.run(start, end)
        times = tuple(sum(per_node[i] for i in bits(nodes)) for per_node in times_us)
        border = crossing_bytes(index, before) if before else 0
        blocks.append(Block(nodes, times, _CALL_US + _US_PER_MIB * border / (1 << 20), inside))
        before |= nodes
    return blocks


def crossing_bytes(index: GraphIndex, before: int) -> int:
    """Size of the values that a set of nodes (bitset) makes and others read."""
    after = index.all_nodes & ~before
    names = [name for node in bits(before) for name in index.nodes[node].outputs if name]
    return sum(index.values[name].size_bytes for name in names if index.consumers.get(name, 0) & after)

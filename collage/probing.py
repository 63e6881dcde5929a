"""Blocks: a graph laid out in a few candidates of about equal expected time.

A whole model's time alone does not say where a runtime is quick, and a profile may have been taken at a
slow moment. So blocks, out of the candidates that there are anyway, are measured like any other region.
"""

from __future__ import annotations

from collections.abc import Sequence

from partitioner.candidate import Candidate, bits
from partitioner.graph_index import GraphIndex
from partitioner.search import Searcher
from partitioner.target import Target

BLOCKS = 5
_FEW_BLOCKS = 4
# Prices of the layout: being off by a whole block, and leaving a node to another target.
_OFF_US = 1000.0
_OTHER_US = 1e5


def layouts(
    index: GraphIndex, candidates: Sequence[Candidate], shares: Sequence[float]
) -> list[Candidate]:
    """Blocks of every target; few, because they are only to confirm what profiles say."""
    targets = dict.fromkeys(candidate.target for candidate in candidates)
    return [c for t in targets for c in blocks(index, candidates, t, shares, _FEW_BLOCKS)]


def blocks(
    index: GraphIndex,
    candidates: Sequence[Candidate],
    target: Target,
    shares: Sequence[float],
    count: int = BLOCKS,
) -> list[Candidate]:
    """Disjoint candidates of a target that cover what it takes, each about as long as the others.

    Args:
        index: the graph.
        candidates: of all targets; together they cover the graph.
        target: the one without a profiler.
        shares: per node its expected share of the time, in any unit.
        count: about how many blocks are wanted.

    Returns:
        The blocks, the whole graph never among them.
    """
    parts = [c for c in candidates if c.nodes != index.all_nodes]
    wanted = sum(shares) / count

    def price_us(candidate: Candidate) -> float:
        if candidate.target != target:
            return _OTHER_US * candidate.nodes.bit_count()
        share = sum(shares[i] for i in bits(candidate.nodes))
        return 1.0 + _OFF_US * (share / wanted - 1.0) ** 2

    covered = 0
    for candidate in parts:
        covered |= candidate.nodes
    if covered != index.all_nodes:
        return []  # a graph so small that it is offered only as a whole
    layout = Searcher(index, parts).solve([price_us(c) for c in parts]).plans[0].plan
    return [c for c in layout.partitions if c.target == target]

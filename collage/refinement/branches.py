"""Branches that could run at once: what only one input of a join needs.

Terms: a *join* is a node that reads what two or more nodes make. Its *arms* are, per input, the nodes
that this input needs and no other input does. No arm waits for another one, since a node that two
arms need is in neither; and every arm is convex, since what lies between two of its nodes is needed
by the same input alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.op_kind import OpKind, kind_of


def arms(index: GraphIndex, nodes: int, join: int) -> list[int]:
    """The arms of a join inside a convex set of nodes, as bitsets; those without a node are left out."""
    makers = bits(index.predecessors[join] & nodes)
    needed = [(index.ancestors[maker] | 1 << maker) & nodes for maker in makers]
    found = []
    for own, mine in enumerate(needed):
        alone = mine
        for other, theirs in enumerate(needed):
            if other != own:
                alone &= ~theirs
        if alone:
            found.append(alone)
    return found


def heavy_arms(index: GraphIndex, nodes: int, join: int) -> list[int]:
    """The arms that hold a convolution, a product or the like: only these can be worth a thread."""
    return [arm for arm in arms(index, nodes, join) if any(_is_heavy(index, i) for i in bits(arm))]


def joins(index: GraphIndex, nodes: int) -> list[int]:
    """The nodes of a convex set that join two or more heavy arms."""
    wide = [node for node in bits(nodes) if (index.predecessors[node] & nodes).bit_count() > 1]
    return [node for node in wide if len(heavy_arms(index, nodes, node)) > 1]


def _is_heavy(index: GraphIndex, node: int) -> bool:
    info = index.nodes[node]
    return kind_of(info.domain, info.op_type) is OpKind.OUT_FUSABLE


def shared_out(found: Sequence[int], lanes: int) -> list[int]:
    """Arms put together so that at most `lanes` sets of about as many nodes each come out."""
    groups = [0] * lanes
    for arm in sorted(found, key=lambda nodes: (-nodes.bit_count(), nodes)):
        lightest = min(range(lanes), key=lambda lane: (groups[lane].bit_count(), lane))
        groups[lightest] |= arm
    return [group for group in groups if group]

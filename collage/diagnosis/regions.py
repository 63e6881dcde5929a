"""The parts of a model that a target takes, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass

from collage.backends.registry import check_options
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.linear_order import linear_order
from collage.partitioner.target import Target


@dataclass(frozen=True)
class Taken:
    """What a target takes of a model.

    Args:
        regions: convex sets (bitsets), the largest first.
        refused: why each other node is refused, by node.
    """

    regions: tuple[int, ...]
    refused: dict[int, str]


def taken(index: GraphIndex, target: Target, all_nodes: bool = False) -> Taken:
    """The model in stretches without the nodes that the target's guard refuses.

    Args:
        all_nodes: take the model as a whole, whatever the guard says.
    """
    if all_nodes:
        return Taken((index.all_nodes,), {})
    backend = check_options(target)
    reasons = {i: backend.supports(index, i, target) for i in range(len(index.nodes))}
    refused = {i: reason for i, reason in reasons.items() if reason is not None}
    if not refused:
        return Taken((index.all_nodes,), {})
    stretches, nodes = [], 0
    for node in linear_order(index, index.all_nodes):
        if node in refused:
            stretches.append(nodes)
            nodes = 0
        else:
            nodes |= 1 << node
    stretches.append(nodes)
    regions = sorted(filter(None, stretches), key=lambda n: -n.bit_count())
    return Taken(tuple(regions), refused)

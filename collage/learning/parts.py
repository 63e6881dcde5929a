"""A model in parts of about the same time, by what one target takes for its nodes."""

from __future__ import annotations

from collections.abc import Mapping

from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.linear_order import linear_order
from collage.partitioner.graph.op_kind import OpKind, kind_of

# So many parts at the most: a part is a few operators of a small model, and a stage of a large one.
PARTS = 24


def parts_of(index: GraphIndex, times_us: Mapping[int, float]) -> list[int]:
    """Disjoint parts (bitsets) that make up the model, in a topological order.

    No part begins with what runtimes fuse to the operator before it.

    Args:
        index: the graph.
        times_us: what each node takes.
    """
    share_us = sum(times_us.values()) / PARTS
    found: list[int] = []
    part, spent_us = 0, 0.0
    for i in linear_order(index, index.all_nodes):
        node = index.nodes[i]
        if spent_us >= share_us and kind_of(node.domain, node.op_type) > OpKind.BROADCAST:
            found.append(part)
            part, spent_us = 0, 0.0
        part |= 1 << i
        spent_us += times_us[i]
    return [*found, part] if part else found

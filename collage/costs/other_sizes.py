"""What regions may take by what the database has of them at other sizes.

Terms: regions have one *structure* when they differ in nothing but the sizes of their values (`symbolic_fingerprint`).

Invariant: an expectation decides what to measure next. It is never a cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from collage.cost_db.costs.key import CostKey
from collage.cost_db.database import CostDatabase
from collage.costs.shape_fit import ShapeFit
from collage.costs.work import node_works
from collage.partitioner.candidate import bits
from collage.partitioner.graph.fingerprint import symbolic_fingerprint
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target

Region = tuple[int, Target]


def expected_at_other_sizes(
    database: CostDatabase, index: GraphIndex, unknown: Mapping[Region, CostKey]
) -> dict[Region, float]:
    """Microseconds of regions by trusted fits through other sizes; those without one are left out.

    Args:
        database: of the team.
        index: the graph.
        unknown: regions (bitsets on targets) with their keys, all of one hardware and protocol.
    """
    if not unknown:
        return {}
    structures = {nodes: symbolic_fingerprint(index, nodes) for nodes, _ in unknown}
    targets = {key.target for key in unknown.values()}
    one = next(iter(unknown.values()))
    points = database.points_of(list(structures.values()), targets, one.hardware, one.protocol)
    if not points:
        return {}
    works = node_works(index)
    found = {}
    for (nodes, target), key in unknown.items():
        fit = ShapeFit.of(points.get((structures[nodes], key.target, key.backend_version), ()))
        expected_us = fit.expected_us(math.fsum(works[i] for i in bits(nodes)))
        if expected_us is not None:
            found[nodes, target] = expected_us
    return found

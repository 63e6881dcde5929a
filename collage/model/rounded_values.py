"""Values so small beside the range of the function that makes them that rounding shows.

Runtimes compute Sigmoid to about 2e-7 of its range, which is 1, not of the value. A detector that sees nothing returns
1e-5 everywhere, and there each runtime has other digits, all right (docs/numeric-ties.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from collage.backends.numerics.comparison import ROUNDED, Array, Expected, Ranged
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo

# The first input goes through as it is, or parts of it do.
_PASSING = {
    *("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Tile"),
    *("Slice", "Split", "Gather", "MaxPool", "Resize", "DepthToSpace", "SpaceToDepth"),
}
# A larger value differs by less than any tolerance allows.
_LARGE = 1e3 * ROUNDED


def rounded_values(index: GraphIndex) -> frozenset[str]:
    """The values of single precision that Sigmoid makes, passed on or joined."""
    found: set[str] = set()
    for node in index.nodes:
        if _is_rounded(node, found):
            found |= {name for name in node.outputs if name and index.values[name].dtype == "float32"}
    return frozenset(found)


def with_rounding(values: Mapping[str, Array], rounded: Collection[str]) -> dict[str, Expected]:
    """Values, with bounds where they are among the rounded ones and so small that rounding shows."""
    return {name: _bounded(v) if name in rounded else v for name, v in values.items()}


def _bounded(value: Array) -> Expected:
    if not value.size or not np.abs(value).max() < _LARGE:
        return value
    step = np.float32(ROUNDED)
    return Ranged(value, value - step, value + step)


def _is_rounded(node: NodeInfo, found: set[str]) -> bool:
    if node.domain:
        return False
    if node.op_type == "Concat":
        return all(name in found for name in node.inputs)
    return node.op_type == "Sigmoid" or (node.op_type in _PASSING and node.inputs[0] in found)

"""Values so small beside the range of the function that makes them that rounding shows.

Runtimes compute Sigmoid to about 2e-7 of its range, which is 1, not of the value. A detector that sees nothing returns
1e-5 everywhere, and there each runtime has other digits, all right (docs/numeric-ties.md).

Terms: the *step* of a value is the most by which rounding moves its elements, one number for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from collage.backends.numerics.comparison import ROUNDED, Array, Expected, Ranged
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo

# All elements of the first input go through as they are.
_WHOLE = {
    *("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Tile"),
    *("DepthToSpace", "SpaceToDepth"),
}
# Some of them do.
_PARTS = {"Slice", "Split", "Gather", "MaxPool", "Resize"}
_OF_TWO = {"Add", "Sub", "Mul"}
# A value so many times as large as its step differs by less than any tolerance allows.
_LARGE = 1e3


@dataclass(frozen=True)
class Rounding:
    """How far rounding moves a value.

    Args:
        sources: the rounded values that decide it; none where each element has the same step.
        factor: the step is so many times the largest step of these, or that of Sigmoid.
        is_product: the value is their product, so their magnitudes decide too.
    """

    sources: tuple[str, ...] = ()
    factor: float = 1.0
    is_product: bool = False


def rounded_values(index: GraphIndex) -> dict[str, Rounding]:
    """The values of single precision that Sigmoid makes, passed on, joined, multiplied, or moved by constants.

    Sources come before what is made of them.
    """
    found: dict[str, Rounding] = {}
    for node in index.nodes:
        rounding = _rounding(index, node, found)
        for name in node.outputs:
            if rounding is not None and name and index.values[name].dtype == "float32":
                found[name] = rounding
    return found


def needed(names: Sequence[str], rounded: Mapping[str, Rounding]) -> list[str]:
    """The values that are named, and the factors that decide their steps."""
    before = _before(names, rounded).values()
    factors = (name for one in before if one.is_product for name in one.sources)
    return [*dict.fromkeys([*names, *factors])]


def with_rounding(
    values: Mapping[str, Array], rounded: Mapping[str, Rounding], names: Sequence[str]
) -> dict[str, Expected]:
    """The values that are named, with bounds where they are among the rounded ones and so small that rounding shows.

    Args:
        values: all that are `needed`.
        rounded: what `rounded_values` gave.
        names: which are returned.
    """
    steps: dict[str, float] = {}
    for name, one in _before(names, rounded).items():
        own = [steps[source] for source in one.sources]
        if one.is_product:
            (a, b), (x, y) = own, (_magnitude(values[source]) for source in one.sources)
            steps[name] = one.factor * (a * y + b * x + a * b)
        else:
            steps[name] = one.factor * max(own, default=ROUNDED)
    return {n: _bounded(values[n], steps[n]) if n in steps else values[n] for n in names}


def _before(names: Sequence[str], rounded: Mapping[str, Rounding]) -> dict[str, Rounding]:
    """The rounded ones among some values, and what they are made of, in order."""
    wanted = set(names)
    for name in reversed(list(rounded)):
        if name in wanted:
            wanted.update(rounded[name].sources)
    return {name: one for name, one in rounded.items() if name in wanted}


def _bounded(value: Array, step: float) -> Expected:
    if not value.size or not np.abs(value).max() < _LARGE * step:
        return value
    return Ranged(value, value - np.float32(step), value + np.float32(step))


def _rounding(index: GraphIndex, node: NodeInfo, found: Mapping[str, Rounding]) -> Rounding | None:
    """How far rounding moves the outputs of a node; None where nothing is known of it."""
    if node.domain:
        return None
    if node.op_type == "Sigmoid":
        return Rounding()
    if node.op_type in _WHOLE:
        return found.get(node.inputs[0])
    if node.op_type in _PARTS:
        one = found.get(node.inputs[0])
        # A part of others may have smaller steps than the whole.
        return one if one is not None and not one.sources else None
    if node.op_type == "Concat":
        return _joined(node, found)
    return _of_two(index, node, found) if node.op_type in _OF_TWO else None


def _joined(node: NodeInfo, found: Mapping[str, Rounding]) -> Rounding | None:
    """That of values side by side, whose largest step is for all; None for multiples of Sigmoid that differ."""
    if not all(name in found for name in node.inputs):
        return None
    every = {found[name] for name in node.inputs}
    if len(every) == 1:
        return every.pop()
    return Rounding(node.inputs) if any(one.sources for one in every) else None


def _of_two(index: GraphIndex, node: NodeInfo, found: Mapping[str, Rounding]) -> Rounding | None:
    """That of a sum, a difference or a product with a constant, or of a product of two rounded values."""
    sources = tuple(name for name in node.inputs if name in found)
    constants = [c for name in node.inputs if (c := index.constant_values.get(name)) is not None]
    if len(sources) == len(constants) == 1:
        one = found[sources[0]]
        if node.op_type != "Mul":
            return one
        factors = np.unique(np.abs(constants[0]))
        # Of several, each element would have a step of its own.
        is_one = len(factors) == 1 and np.isfinite(factors[0])
        return replace(one, factor=one.factor * float(factors[0])) if is_one else None
    is_product = len(sources) == 2 and node.op_type == "Mul"
    return Rounding(sources, is_product=True) if is_product else None


def _magnitude(value: Array) -> float:
    return float(np.abs(value).max(initial=0.0))

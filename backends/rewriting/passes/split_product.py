"""A product whose result is split becomes a product for each part; so do elementwise operators in between.

With channels last in memory a Split is a copy, which takes longer than reading the input again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import onnx

from collage.backends.rewriting.graph import (
    BINARY,
    UNARY,
    RewriteGraph,
    attributes,
    called,
    reads,
    rewired,
)

_CHANNELS = 1  # axis of images
# The axis of the outputs in each operator's weights.
_MADE = {"Conv": 0, "MatMul": 1}
_TURNS = ("Transpose", "Reshape", "Identity")
# Queries, keys and values of an attention take as long one by one (docs/results/rewriting.md).
_MOST_PARTS = {"Conv": 3, "MatMul": 2}


def split_products(graph: RewriteGraph) -> int:
    """Apply the pass; returns how many products there were."""
    return _Splits(graph).run()


@dataclass(frozen=True)
class _Split:
    """A value that is cut into all of its parts."""

    value: str  # the value
    axis: int  # that it is cut along
    parts: Sequence[str]  # in their order
    nodes: Sequence[onnx.NodeProto]  # a Split, or a Slice for each part


class _Splits:
    def __init__(self, graph: RewriteGraph) -> None:
        self._graph = graph
        self._readers = graph.readers()
        self._places = {name: i for i, node in enumerate(graph.nodes) for name in node.output}

    def run(self) -> int:
        """Replace all of them."""
        made: dict[int, list[onnx.NodeProto]] = {}
        found = 0
        for value in [name for node in self._graph.nodes for name in node.output]:
            split = self._split_of(value)
            before = None if split is None else self._before(split)
            if split is None or before is None:
                continue
            made |= {self._places[n.output[0]]: [] for n in (*before, *split.nodes)}
            first = min(self._places[part] for part in split.parts)
            made[first] = self._parts(split, before)
            found += 1
        self._graph.exchange(made)
        return found

    def _split_of(self, value: str) -> _Split | None:
        """How all readers of a value cut it, where they do nothing else."""
        shape, readers = self._graph.shapes.get(value, ()), self._readers[value]
        if not readers or not shape:
            return None
        if len(readers) == 1 and self._graph.is_ours(readers[0], "Split"):
            axis = attributes(readers[0]).get("axis", 0) % len(shape)
            split = _Split(value, axis, list(readers[0].output), readers)
        elif all(self._graph.is_ours(reader, "Slice") for reader in readers):
            cuts = [(self._graph.cut(reader), reader.output[0]) for reader in readers]
            ordered = sorted((cut, part) for cut, part in cuts if cut is not None)
            if len(ordered) != len(cuts):
                return None
            axis = ordered[0][0][0]
            ends = [0, *(end for (_, _, end), _ in ordered)]
            follow = [(axis, begin, end) for begin, end in pairwise(ends)]
            if [cut for cut, _ in ordered] != follow or ends[-1] != shape[axis]:
                return None
            split = _Split(value, axis, [part for _, part in ordered], readers)
        else:
            return None
        known = all(len(self._graph.shapes.get(part, ())) == len(shape) for part in split.parts)
        return split if known and len(split.parts) > 1 else None

    def _before(self, split: _Split) -> list[onnx.NodeProto] | None:
        """The product before a split and the elementwise operators between, where nothing else reads them."""
        rank = len(self._graph.shapes[split.value])
        products, between, waiting = set[int](), set[int](), [split.value]
        while waiting:
            at = self._places.get(waiting.pop(), -1)
            node = self._graph.nodes[at]
            if at >= 0 and self._graph.is_ours(node, *_MADE):
                products.add(at)
            elif at >= 0 and self._is_elementwise(node, rank):
                if at not in between:
                    waiting += [n for n in node.input if n and n not in self._graph.constants]
                between.add(at)
            else:
                return None
        if len(products) != 1:
            return None
        nodes = [self._graph.nodes[at] for at in (*products, *sorted(between))]
        ours = {id(node) for node in (*nodes, *split.nodes)}
        is_read_here = all(id(r) in ours for node in nodes for r in self._readers[node.output[0]])
        return nodes if is_read_here and self._is_product(nodes[0], split, rank) else None

    def _is_elementwise(self, node: onnx.NodeProto, rank: int) -> bool:
        if len(node.output) > 1:
            return False
        if self._graph.is_ours(node, *UNARY):
            return all(name in self._graph.constants for name in node.input[1:] if name)
        shape = self._graph.shapes.get(node.output[0], ())
        values = [name for name in node.input if name not in self._graph.constants]
        return (
            self._graph.is_ours(node, *BINARY)
            and len(shape) == rank
            and all(self._graph.shapes.get(name) == shape for name in values)
        )

    def _is_product(self, node: onnx.NodeProto, split: _Split, rank: int) -> bool:
        if len(split.parts) > _MOST_PARTS[node.op_type]:
            return False
        if not all(self._is_constant(name) for name in node.input[1:] if name):
            return False
        if node.op_type == "Conv":
            # A convolution over more places gathers its input once for each part.
            is_pointwise = set(self._graph.shapes.get(node.input[1], ())[2:]) == {1}
            return split.axis == _CHANNELS and is_pointwise and attributes(node).get("group", 1) == 1
        return split.axis == rank - 1 and len(self._graph.shapes.get(node.input[1], ())) == 2

    def _is_constant(self, name: str) -> bool:
        """Whether a value is a constant, or one that is transposed or reshaped."""
        if name in self._graph.constants:
            return True
        at = self._places.get(name)
        node = None if at is None else self._graph.nodes[at]
        if node is None or not self._graph.is_ours(node, *_TURNS):
            return False
        return all(self._is_constant(read) for read in reads(node))

    def _parts(self, split: _Split, before: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
        parts = {split.value: split.parts}
        cut: dict[tuple[str, int], Sequence[str]] = {}
        count = len(split.parts)
        made = []
        for node in before:
            inputs: list[Sequence[str]] = []
            for place, name in enumerate(node.input):
                along = self._along(split, node, place)
                if along is None:
                    inputs.append(parts.get(name, [name] * count))
                    continue
                if (name, along) not in cut:
                    cut[name, along] = [f"{split.value}/{name}/{along}/{i}" for i in range(count)]
                    made.append(self._cut(split, name, cut[name, along], along))
                inputs.append(cut[name, along])
            result = node.output[0]
            parts.setdefault(result, [f"{result}/{i}" for i in range(count)])
            for i, part in enumerate(parts[result]):
                one = rewired(node, (names[i] for names in inputs), [part])
                one.name = f"{called(node)}/{i}"
                made.append(one)
        return made

    def _along(self, split: _Split, node: onnx.NodeProto, place: int) -> int | None:
        """The axis along which a constant that a node reads has a number for each output, or None."""
        name = node.input[place]
        if self._graph.is_ours(node, *_MADE):
            return (None, _MADE[node.op_type], 0)[place] if name else None
        whole, shape = self._graph.shapes[split.value], self._graph.shapes.get(name, ())
        along = split.axis - len(whole) + len(shape)
        has_each = along >= 0 and shape[along] == whole[split.axis] > 1
        return along if name in self._graph.constants and has_each else None

    def _cut(self, split: _Split, name: str, parts: Sequence[str], along: int) -> onnx.NodeProto:
        """A constant's parts; a runtime folds the Split."""
        sizes = [self._graph.shapes[part][split.axis] for part in split.parts]
        return self._graph.parted(name, parts, sizes, along, f"{split.value}/{name}/{along}")

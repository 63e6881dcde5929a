"""A product of a concatenation with broadcast values becomes a sum of two products.

Models that let each place see the whole broadcast a vector over all places and concatenate it with what
each place has. A convolution over one place, or a product of rows, then computes the vector's part
again in every place; here once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import onnx
from onnx import helper

from collage.backends.rewriting.graph import RewriteGraph, attributes, called, reads, rewired

_PRODUCTS = ("Conv", "Gemm", "MatMul")
_MAY_HAVE_NO_BIAS = 11  # of Gemm, from this opset
_RESIZES = ("Resize", "Upsample")
_BROADCASTS = ("Expand", "Tile", *_RESIZES)
# Of broadcast channels; with fewer the sum costs what it saves (docs/results/rewriting.md).
_FEWEST = 32


def split_broadcast_concat(graph: RewriteGraph) -> int:
    """Apply the pass; returns how many products were split."""
    return _BroadcastConcats(graph).run()


@dataclass(frozen=True)
class _Whole:
    """A product that reads a concatenation."""

    product: onnx.NodeProto  # the node
    parts: Sequence[str]  # the values that are concatenated
    axis: int  # of the concatenation
    once: Mapping[str, str]  # by broadcast part, the value before the broadcast


class _BroadcastConcats:
    def __init__(self, graph: RewriteGraph) -> None:
        self._graph = graph
        self._places = {name: i for i, node in enumerate(graph.nodes) for name in node.output}

    def run(self) -> int:
        """Replace all of them."""
        wholes = {place: self._whole(node) for place, node in enumerate(self._graph.nodes)}
        made = {place: self._sum(whole) for place, whole in wholes.items() if whole is not None}
        if made:
            self._graph.exchange(made)
            self._drop_unread()
        return len(made)

    def _drop_unread(self) -> None:
        read = {output.name for output in self._graph.proto.graph.output}
        kept: list[onnx.NodeProto] = []
        for node in reversed(self._graph.nodes):
            if self._graph.is_ours(node, "Concat", *_BROADCASTS) and node.output[0] not in read:
                continue
            read.update(reads(node))
            kept.append(node)
        self._graph.replace(kept[::-1])

    def _whole(self, node: onnx.NodeProto) -> _Whole | None:
        if not self._graph.is_ours(node, *_PRODUCTS) or not self._is_product(node):
            return None
        rank = len(self._graph.shapes.get(node.input[0], ()))
        axis = 1 if node.op_type == "Conv" else rank - 1
        parts = self._parts(node.input[0], axis)
        if any(len(self._graph.shapes.get(name, ())) != rank for name in parts):
            return None
        once = {name: self._once(name, axis) for name in parts}
        sizes = {name: self._sizes(of, axis) for name, of in once.items() if of is not None}
        # The others are computed in every place, by the other product.
        kept = {name: of for name, of in once.items() if of and sizes[name] == min(sizes.values())}
        channels = sum(self._graph.shapes[of][axis] for of in kept.values())
        is_worth_it = channels >= _FEWEST and len(kept) < len(once)
        return _Whole(node, parts, axis, kept) if is_worth_it else None

    def _parts(self, name: str, axis: int) -> list[str]:
        """The values that a value is concatenated from along an axis, in one step or several."""
        node = self._maker(name)
        rank = len(self._graph.shapes.get(name, ()))
        if node is None or rank == 0 or not self._graph.is_ours(node, "Concat"):
            return [name]
        if attributes(node)["axis"] % rank != axis:
            return [name]
        return [part for given in node.input for part in self._parts(given, axis)]

    def _is_product(self, node: onnx.NodeProto) -> bool:
        if not all(name in self._graph.constants for name in node.input[1:] if name):
            return False
        given = attributes(node)
        weights, *bias = (self._graph.shapes.get(name, ()) for name in node.input[1:])
        if node.op_type == "MatMul":
            return len(weights) == 2
        if node.op_type == "Gemm":
            is_row = all(prod(shape) == prod(shape[-1:]) for shape in bias)
            return not given.get("transA") and is_row and self._graph.opset >= _MAY_HAVE_NO_BIAS
        return prod(weights[2:]) == 1 and given.get("group", 1) == 1 and not any(given.get("pads", ()))

    def _once(self, name: str, axis: int) -> str | None:
        """The value that is broadcast over all axes but this one; None for others."""
        node = self._maker(name)
        if node is None or not self._graph.is_ours(node, *_BROADCASTS):
            return None
        of = str(node.input[0])
        before, after = (self._graph.shapes.get(value, ()) for value in (of, name))
        if len(before) != len(after) or before == after or before[axis] != after[axis]:
            return None
        if node.op_type in _RESIZES and not (prod(before[2:]) == 1 and _gives_each(node)):
            return None
        return of if all(size in (1, made) for size, made in zip(before, after, strict=True)) else None

    def _sizes(self, name: str, axis: int) -> tuple[int, ...]:
        """Sizes along the other axes, after their product."""
        shape = self._graph.shapes[name]
        others = shape[:axis] + shape[axis + 1 :]
        return (prod(others), *others)

    def _maker(self, name: str) -> onnx.NodeProto | None:
        place = self._places.get(name)
        return None if place is None else self._graph.nodes[place]

    def _sum(self, whole: _Whole) -> list[onnx.NodeProto]:
        product, (_, weights, *bias) = whole.product, whole.product.input
        names = whole.parts
        cut = [f"{called(product)}/cut/{i}" for i in range(len(names))]
        sizes = [self._graph.shapes[name][whole.axis] for name in names]
        along = 1 if product.op_type == "Conv" or attributes(product).get("transB") else 0
        nodes = [self._graph.parted(weights, cut, sizes, along, f"{called(product)}/cut")]
        sides = []
        for side, is_once in (("each", False), ("once", True)):
            those = [i for i, name in enumerate(names) if (name in whole.once) == is_once]
            values = [whole.once.get(names[i], names[i]) for i in those]
            inputs = [
                _joined(nodes, f"{called(product)}/{side}", values, whole.axis),
                _joined(nodes, f"{called(product)}/{side}/weights", [cut[i] for i in those], along),
                *(bias if is_once else ()),
            ]
            made = f"{called(product)}/{side}/product"
            part = rewired(product, inputs, [made])
            part.name = made
            nodes.append(part)
            sides.append(made)
        return [*nodes, helper.make_node("Add", sides, product.output, name=product.name)]


def _joined(nodes: list[onnx.NodeProto], name: str, values: Sequence[str], axis: int) -> str:
    """The concatenation of values."""
    if len(values) == 1:
        return values[0]
    nodes.append(helper.make_node("Concat", values, [name], name=name, axis=axis))
    return name


def _gives_each(resize: onnx.NodeProto) -> bool:
    """Whether a Resize of one place broadcasts its number."""
    given = attributes(resize)
    looks_beyond = given.get("coordinate_transformation_mode") == b"tf_crop_and_resize"
    return given.get("mode", b"nearest") in (b"linear", b"nearest") and not looks_beyond

"""A product over a concatenation with values that are the same in several places, which is computed of those once.

A model that lets every place see the whole spreads what it has of the whole over all places (a sound's mean and deviation, the features
of a cloud of points, an image's mean) and concatenates it with what each place has. A convolution over one place then computes of it the
same in every place, and so does a product of rows.
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
_SPREADS = ("Expand", "Tile", *_RESIZES)
# With 8 channels it took 0.91 to 1.07 of the time on four runtimes, with 32 0.81 to 1.00.
_FEWEST = 32


def part_spreads(graph: RewriteGraph) -> int:
    """Write such products as the sum of two; returns how many there were."""
    return _Spreads(graph).run()


@dataclass(frozen=True)
class _Whole:
    """A product that reads a concatenation.

    Args:
        product: the node.
        parts: what is concatenated.
        axis: that it is along.
        once: by its part, what that is spread from.
    """

    product: onnx.NodeProto
    parts: Sequence[str]
    axis: int
    once: Mapping[str, str]


class _Spreads:
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
            if self._graph.is_ours(node, "Concat", *_SPREADS) and node.output[0] not in read:
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
        # What is as large elsewhere is one product.
        kept = {name: of for name, of in once.items() if of and sizes[name] == min(sizes.values())}
        channels = sum(self._graph.shapes[of][axis] for of in kept.values())
        is_worth_it = channels >= _FEWEST and len(kept) < len(once)
        return _Whole(node, parts, axis, kept) if is_worth_it else None

    def _parts(self, name: str, axis: int) -> list[str]:
        """What a value is concatenated from, along an axis, also in several steps."""
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
        """What a value is spread from, over all axes but this one."""
        node = self._maker(name)
        if node is None or not self._graph.is_ours(node, *_SPREADS):
            return None
        of = str(node.input[0])
        before, after = (self._graph.shapes.get(value, ()) for value in (of, name))
        if len(before) != len(after) or before == after or before[axis] != after[axis]:
            return None
        if node.op_type in _RESIZES and not (prod(before[2:]) == 1 and _gives_each(node)):
            return None
        return of if all(size in (1, made) for size, made in zip(before, after, strict=True)) else None

    def _sizes(self, name: str, axis: int) -> tuple[int, ...]:
        """Of the other axes, the fewest places first."""
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
    """A value that is these one after the other, by a node more where they are several."""
    if len(values) == 1:
        return values[0]
    nodes.append(helper.make_node("Concat", values, [name], name=name, axis=axis))
    return name


def _gives_each(resize: onnx.NodeProto) -> bool:
    """Whether a Resize that makes many places of one gives each of them its number, and does not look beyond the edge."""
    given = attributes(resize)
    looks_beyond = given.get("coordinate_transformation_mode") == b"tf_crop_and_resize"
    return given.get("mode", b"nearest") in (b"linear", b"nearest") and not looks_beyond

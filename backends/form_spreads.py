"""A product over a concatenation with values that are the same in several places, which is computed of those once.

A model that lets every place see the whole spreads what it has of the whole over all places (a sound's mean and deviation, the features
of a cloud of points, an image's mean) and concatenates it with what each place has. A convolution over one place then computes of it the
same in every place, and so does a product of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import onnx
from onnx import helper

from backends.form_graph import FormGraph, attributes, called

# The axis along which each operator's weights have its inputs.
_READ = {"Conv": 1, "MatMul": 0}
_SPREADS = ("Expand", "Resize", "Tile", "Upsample")
# How a Resize that makes many places of one gives each of them its number; others may overshoot, or look beyond the edge.
_MODES, _LOOKS_BEYOND = {b"linear", b"nearest"}, b"tf_crop_and_resize"
# With fewer channels the sum costs what the products save.
_FEWEST = 32


def part_spreads(graph: FormGraph) -> int:
    """Write such products as the sum of two; returns how many there were."""
    return _Spreads(graph).run()


@dataclass(frozen=True)
class _Whole:
    """A product that reads a concatenation.

    Args:
        product: the node.
        joined: the concatenation.
        axis: that it is along.
        once: by its input, what that is spread from.
    """

    product: onnx.NodeProto
    joined: onnx.NodeProto
    axis: int
    once: dict[str, str]


class _Spreads:
    def __init__(self, graph: FormGraph) -> None:
        self._graph = graph
        self._readers = graph.readers()
        self._places = {name: i for i, node in enumerate(graph.nodes) for name in node.output}

    def run(self) -> int:
        """Replace all of them."""
        made: dict[int, list[onnx.NodeProto]] = {}
        found = 0
        for place, node in enumerate(self._graph.nodes):
            whole = self._whole(node)
            if whole is None:
                continue
            gone = [whole.joined.output[0]]
            gone += [name for name in whole.once if all(r is whole.joined for r in self._readers[name])]
            made |= {self._places[name]: [] for name in gone} | {place: self._sum(whole)}
            found += 1
        self._graph.exchange(made)
        return found

    def _whole(self, node: onnx.NodeProto) -> _Whole | None:
        if not self._graph.is_ours(node, *_READ):
            return None
        joined, rank = self._maker(node.input[0]), len(self._graph.shapes.get(node.input[0], ()))
        if joined is None or not self._graph.is_ours(joined, "Concat") or not self._is_product(node):
            return None
        axis = 1 if node.op_type == "Conv" else rank - 1
        if attributes(joined)["axis"] % rank != axis or len(self._readers[joined.output[0]]) > 1:
            return None
        if any(len(self._graph.shapes.get(name, ())) != rank for name in joined.input):
            return None
        once = {name: self._once(name, axis) for name in joined.input}
        sizes = {name: self._sizes(of, axis) for name, of in once.items() if of is not None}
        # What is as large elsewhere is one product.
        kept = {name: of for name, of in once.items() if of and sizes[name] == min(sizes.values())}
        channels = sum(self._graph.shapes[of][axis] for of in kept.values())
        return (
            _Whole(node, joined, axis, kept) if channels >= _FEWEST and len(kept) < len(once) else None
        )

    def _is_product(self, node: onnx.NodeProto) -> bool:
        if not all(name in self._graph.constants for name in node.input[1:] if name):
            return False
        given, weights = attributes(node), self._graph.shapes[node.input[1]]
        if node.op_type == "MatMul":
            return len(weights) == 2
        return prod(weights[2:]) == 1 and given.get("group", 1) == 1 and not any(given.get("pads", ()))

    def _once(self, name: str, axis: int) -> str | None:
        """What a value is spread from, over all axes but this one."""
        node = self._maker(name)
        if node is None or not self._graph.is_ours(node, *_SPREADS):
            return None
        given, of = attributes(node), str(node.input[0])
        beyond = given.get("coordinate_transformation_mode") == _LOOKS_BEYOND
        if node.op_type in ("Resize", "Upsample") and (
            beyond or given.get("mode", b"nearest") not in _MODES
        ):
            return None
        before, after = self._graph.shapes.get(of, ()), self._graph.shapes[name]
        if len(before) != len(after) or before == after or before[axis] != after[axis]:
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
        product, (read, weights, *bias) = whole.product, whole.product.input
        names = whole.joined.input
        cut = [f"{read}/{i}/{weights}" for i in range(len(names))]
        sizes = [self._graph.shapes[name][whole.axis] for name in names]
        along = _READ[product.op_type]
        nodes = [self._graph.parted(weights, cut, sizes, along, f"{called(product)}/cut")]
        sides = []
        for side, is_once in (("each", False), ("once", True)):
            those = [i for i, name in enumerate(names) if (name in whole.once) == is_once]
            values = [whole.once.get(names[i], names[i]) for i in those]
            inputs = [
                self._joined(nodes, f"{called(product)}/{side}", values, whole.axis),
                self._joined(
                    nodes, f"{called(product)}/{side}/weights", [cut[i] for i in those], along
                ),
                *(bias if is_once else ()),
            ]
            part = onnx.NodeProto()
            part.CopyFrom(product)
            del part.input[:], part.output[:]
            part.input.extend(inputs)
            part.name = f"{called(product)}/{side}/product"
            part.output.append(part.name)
            nodes.append(part)
            sides.append(part.name)
        return [*nodes, helper.make_node("Add", sides, product.output, name=product.name)]

    def _joined(self, nodes: list[onnx.NodeProto], name: str, values: Sequence[str], axis: int) -> str:
        if len(values) == 1:
            return values[0]
        nodes.append(helper.make_node("Concat", values, [name], name=name, axis=axis))
        return name

"""A pass that computes some operators in another layout of their values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import onnx

from collage.backends.rewriting.graph import (
    BINARY,
    UNARY,
    RewriteGraph,
    attributes,
    called,
    reads,
    rewired,
    set_attributes,
)


class LayoutPass(ABC):
    """Runs some operators in another layout, and stays in it through elementwise operators.

    Every value has its own layout, and the other one where something was computed in it. One is made
    from the other only where it is read.
    """

    tag: str  # names in the other layout end in it
    rank: int  # of values that have the other layout
    broadcasts = True  # whether operands of several sizes broadcast in the other layout as in their own

    def __init__(self, graph: RewriteGraph) -> None:
        self.graph = graph
        self.found = 0
        self._other: dict[str, str] = {}
        self._plain = {value.name for value in graph.proto.graph.input} | set(graph.constants)
        self._made: list[onnx.NodeProto] = []

    @abstractmethod
    def convert(self, node: onnx.NodeProto) -> bool:
        """Write a node in the other layout by `make`, or return False."""

    @abstractmethod
    def entering(self, name: str, other: str) -> list[onnx.NodeProto]:
        """The nodes that bring a value into the other layout."""

    @abstractmethod
    def leaving(self, other: str, name: str) -> list[onnx.NodeProto]:
        """The nodes that bring a value back into its own layout."""

    @abstractmethod
    def other_constant(self, name: str) -> str | None:
        """A constant as elementwise operators read it in the other layout; None where there is none."""

    def run(self) -> int:
        """Convert all that can be; returns how many operators were."""
        for node in self.graph.nodes:
            if self.convert(node) or self._carry(node):
                continue
            for name in reads(node):
                self.leave(name)
            self.make_plain(node)
        for output in self.graph.proto.graph.output:
            self.leave(output.name)
        if self.found > 0:
            self.graph.replace(self._made)
        return self.found

    def is_other(self, name: str) -> bool:
        """Whether a value exists in the other layout."""
        return name in self._other

    def enter(self, name: str) -> str:
        """The value in the other layout; made where it does not exist."""
        if name not in self._other:
            other = self.name_of(name)
            self._made.extend(self.entering(name, other))
            self._other[name] = other
        return self._other[name]

    def leave(self, name: str) -> None:
        """Make a value in its own layout, where it does not exist."""
        if name in self._other and name not in self._plain:
            self._made.extend(self.leaving(self._other[name], name))
            self._plain.add(name)

    def make(self, *nodes: onnx.NodeProto) -> None:
        """Add nodes."""
        self._made.extend(nodes)

    def make_plain(self, node: onnx.NodeProto) -> None:
        """Add a node whose results are in their own layout."""
        self._made.append(node)
        self._plain.update(node.output)

    def is_made_of(self, value: str, other: str) -> None:
        """Note that a value in the other layout is another value as it is."""
        self._other[value] = other

    def name_of(self, value: str) -> str:
        """The name of a value in the other layout."""
        return f"{value}/{self.tag}"

    def made_as(self, value: str) -> str:
        """Note that a value is made in the other layout; returns its name there."""
        self._other[value] = self.name_of(value)
        return self._other[value]

    def carry(self, node: onnx.NodeProto, inputs: Sequence[str]) -> onnx.NodeProto:
        """Add a node with other inputs, and its outputs in the other layout."""
        made = rewired(node, inputs, [self.made_as(name) for name in node.output])
        self._made.append(made)
        return made

    def reduce(self, node: onnx.NodeProto, first: str, axes: Iterable[int]) -> None:
        """Add a reduction over these axes of the other layout; without `keepdims` its result has its own."""
        given, over, inputs = attributes(node), sorted(axes), [first]
        if "axes" not in given:
            inputs.append(self.graph.integers(f"{called(node)}/axes/{self.tag}", over))
        if given.get("keepdims", 1):
            made = self.carry(node, inputs)
        else:
            made = rewired(node, inputs, node.output)
            self.make_plain(made)
        if "axes" in given:
            set_attributes(made, {"axes": over})

    def _carry(self, node: onnx.NodeProto) -> bool:
        """Compute an elementwise operator in the other layout where an operand has it."""
        if not any(name in self._other for name in node.input) or len(node.output) != 1:
            return False
        if self.graph.is_ours(node, *UNARY) and node.input[0] in self._other:
            self.carry(node, [self._other[node.input[0]], *node.input[1:]])
            return True
        shape = self.graph.shapes.get(node.output[0], ())
        if not self.graph.is_ours(node, *BINARY) or len(shape) != self.rank:
            return False
        values = [name for name in node.input if name not in self.graph.constants]
        sizes = [self.graph.shapes.get(name, ()) for name in values]
        if any(len(size) != self.rank or (size != shape and not self.broadcasts) for size in sizes):
            return False
        constants = {
            name: self.other_constant(name) for name in node.input if name in self.graph.constants
        }
        if None in constants.values():
            return False
        self.carry(node, [constants.get(name) or self.enter(name) for name in node.input])
        return True

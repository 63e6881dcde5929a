"""The graph of a model while its nodes are exchanged for others that compute the same (`collage.backends.rewriting.rewrite`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from collage.backends.support.predicates import op_names

_OURS = ("", "ai.onnx")
AXES_ARE_AN_INPUT = 18  # of reductions, from this opset
_SIZES_ARE_AN_INPUT = 13  # of Split, from this opset
_ALONG_AN_AXIS = 3  # inputs of a Slice: where it begins and ends, and the axis
UNARY = op_names(
    """
    Abs Ceil Celu Clip Cos Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity LeakyRelu Log Mish
    Neg Reciprocal Relu Selu Sigmoid Sign Sin Softplus Softsign Sqrt Tanh ThresholdedRelu
    """
)
BINARY = op_names("Add Div Max Min Mul PRelu Pow Sub")
REDUCTIONS = op_names("ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceSum")


class RewriteGraph:
    """A graph with what a change of form asks for: shapes, constants, who reads what.

    Args:
        proto: the model, whose weights may be in files beside it; changed in place by `replace`.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto
        self.opset = next((o.version for o in proto.opset_import if o.domain in _OURS), 0)
        # Held, since Python's objects for a message's parts live only as long as somebody has them.
        self.nodes: list[onnx.NodeProto] = list(proto.graph.node)
        # A default of an input is no constant.
        self._inputs = {value.name for value in proto.graph.input}
        self._defaults = [t for t in proto.graph.initializer if t.name in self._inputs]
        self.constants = {t.name: t for t in proto.graph.initializer if t.name not in self._inputs}
        self.shapes = _shapes(proto)
        self.shapes |= {name: tuple(tensor.dims) for name, tensor in self.constants.items()}

    def is_ours(self, node: onnx.NodeProto, *kinds: str) -> bool:
        """Whether a node is one of these operators of ai.onnx."""
        return node.op_type in kinds and node.domain in _OURS

    def readers(self) -> dict[str, list[onnx.NodeProto]]:
        """Who reads each value; a graph's output and what a body reads have no single reader."""
        found: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self.nodes:
            for name in reads(node):
                found[name].append(node)
            for name in set(reads(node)) - set(node.input):
                found[name].append(node)
        for output in self.proto.graph.output:
            found[output.name].extend([onnx.NodeProto()] * 2)
        return found

    def array(self, name: str) -> npt.NDArray[Any] | None:
        """A constant's numbers, where they are in the file."""
        tensor = self.constants.get(name)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
            return None
        return np.asarray(numpy_helper.to_array(tensor))

    def cut(self, node: onnx.NodeProto) -> tuple[int, int, int] | None:
        """Along which axis a Slice cuts, from where and to where; None where it takes steps, has several axes, or is not known."""
        shape = self.shapes.get(node.input[0], ())
        given = [self.array(name) for name in node.input[1:]]
        numbers = [int(found.item()) for found in given if found is not None and found.size == 1]
        if not shape or len(numbers) != len(given) or len(numbers) < _ALONG_AN_AXIS:
            return None
        begin, end, axis, *step = numbers
        begin, end, _ = slice(begin, end).indices(shape[axis])
        return (axis % len(shape), begin, end) if step in ([], [1]) else None

    def reduced(self, node: onnx.NodeProto) -> list[int] | None:
        """The axes that a reduction is over, as they are written; None where they are not known, or none is named."""
        axes = attributes(node).get("axes")
        if axes is None and len(node.input) > 1:
            axes = self.array(node.input[1])
        return None if axes is None or len(axes) == 0 else [int(axis) for axis in axes]

    def constant(self, name: str, numbers: npt.ArrayLike) -> str:
        """Add a constant, once."""
        if name not in self.constants:
            made = numpy_helper.from_array(np.ascontiguousarray(numbers), name)
            self._add(made)
        return name

    def integers(self, name: str, numbers: Iterable[int]) -> str:
        """Add a constant of int64, once."""
        return self.constant(name, np.array(list(numbers), np.int64))

    def copied(self, source: str, name: str, shape: Sequence[int] | None = None) -> str:
        """Add a constant with the numbers of another one, in another shape; they may be beside the file."""
        if name not in self.constants:
            made = onnx.TensorProto()
            made.CopyFrom(self.constants[source])
            made.name = name
            if shape is not None:
                del made.dims[:]
                made.dims.extend(shape)
            self._add(made)
        return name

    def _add(self, made: onnx.TensorProto) -> None:
        self.constants[made.name] = made
        self.shapes[made.name] = tuple(made.dims)

    def parted(
        self, name: str, parts: Sequence[str], sizes: Sequence[int], axis: int, called_so: str
    ) -> onnx.NodeProto:
        """A node that cuts a value into parts of these sizes; a constant's are folded when a runtime compiles."""
        if self.opset < _SIZES_ARE_AN_INPUT:
            return helper.make_node("Split", [name], parts, name=called_so, axis=axis, split=sizes)
        given = self.integers(f"{called_so}/sizes", sizes)
        return helper.make_node("Split", [name, given], parts, name=called_so, axis=axis)

    def exchange(self, made: Mapping[int, Sequence[onnx.NodeProto]]) -> None:
        """Put other nodes, or none, in the places of some."""
        if made:
            self.replace([n for i, node in enumerate(self.nodes) for n in made.get(i, [node])])

    def replace(self, nodes: Sequence[onnx.NodeProto]) -> None:
        """Take these nodes, in an order that can be run, and the constants that they read."""
        graph = self.proto.graph
        read = {name for node in nodes for name in reads(node)} | {o.name for o in graph.output}
        self.nodes = list(nodes)
        self.constants = {name: tensor for name, tensor in self.constants.items() if name in read}
        made = onnx.GraphProto()
        made.node.extend(self.nodes)
        made.initializer.extend([*self._defaults, *self.constants.values()])
        for field in ("node", "initializer", "value_info"):
            graph.ClearField(field)
        graph.MergeFrom(made)
        self.nodes = list(graph.node)


class LayoutPass(ABC):
    """A pass that runs some operators in another form of their values, and stays in it through elementwise operators.

    Every value has its own form, and another one where something was computed in it. Each is made from the other one only
    where it is read.
    """

    tag: str  # names of other forms end in it
    rank: int  # of values that have another form
    broadcasts = True  # whether operands of several sizes meet in the other form as in their own

    def __init__(self, graph: RewriteGraph) -> None:
        self.graph = graph
        self.found = 0
        self._other: dict[str, str] = {}
        self._plain = {value.name for value in graph.proto.graph.input} | set(graph.constants)
        self._made: list[onnx.NodeProto] = []

    @abstractmethod
    def convert(self, node: onnx.NodeProto) -> bool:
        """Make a node in the other form by `make`, or return False."""

    @abstractmethod
    def entering(self, name: str, other: str) -> list[onnx.NodeProto]:
        """The nodes that make a value's other form."""

    @abstractmethod
    def leaving(self, other: str, name: str) -> list[onnx.NodeProto]:
        """The nodes that make a value from its other form."""

    @abstractmethod
    def other_constant(self, name: str) -> str | None:
        """A constant as elementwise operators read it in the other form, or None where it has no such form."""

    def run(self) -> int:
        """Convert what can be; returns how many of the operators that it is for were."""
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
        """Whether a value's other form is there."""
        return name in self._other

    def enter(self, name: str) -> str:
        """The other form of a value."""
        if name not in self._other:
            other = self.name_of(name)
            self._made.extend(self.entering(name, other))
            self._other[name] = other
        return self._other[name]

    def leave(self, name: str) -> None:
        """Make a value's own form, if it is not there."""
        if name in self._other and name not in self._plain:
            self._made.extend(self.leaving(self._other[name], name))
            self._plain.add(name)

    def make(self, *nodes: onnx.NodeProto) -> None:
        """Take nodes as they are."""
        self._made.extend(nodes)

    def make_plain(self, node: onnx.NodeProto) -> None:
        """Take a node that makes values in their own form."""
        self._made.append(node)
        self._plain.update(node.output)

    def is_made_of(self, value: str, other: str) -> None:
        """Say that a value's other form is another value's own."""
        self._other[value] = other

    def name_of(self, value: str) -> str:
        """What a value's other form is called."""
        return f"{value}/{self.tag}"

    def made_as(self, value: str) -> str:
        """Say that a value is made in the other form, and how it is called."""
        self._other[value] = self.name_of(value)
        return self._other[value]

    def carry(self, node: onnx.NodeProto, inputs: Sequence[str]) -> onnx.NodeProto:
        """A node as it is, with other inputs, and its outputs in the other form."""
        made = rewired(node, inputs, [self.made_as(name) for name in node.output])
        self._made.append(made)
        return made

    def reduce(self, node: onnx.NodeProto, first: str, axes: Iterable[int]) -> None:
        """Take a reduction over these axes of the other form; what it does not keep the axes of is in its own form."""
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
        """Compute an elementwise operator in the other form where an operand is in it."""
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


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes by name, as Python's values."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def set_attributes(node: onnx.NodeProto, values: Mapping[str, Any]) -> None:
    """Give a node these attributes, in place of its own of the same names."""
    kept = [attribute for attribute in node.attribute if attribute.name not in values]
    made = [helper.make_attribute(name, value) for name, value in values.items()]
    copies = onnx.NodeProto()
    copies.attribute.extend([*kept, *made])
    del node.attribute[:]
    node.attribute.extend(copies.attribute)


def rewired(node: onnx.NodeProto, inputs: Iterable[str], outputs: Iterable[str]) -> onnx.NodeProto:
    """A node as it is, with other inputs and outputs."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.input[:], made.output[:]
    made.input.extend(inputs)
    made.output.extend(outputs)
    return made


def called(node: onnx.NodeProto) -> str:
    """How a profile calls a node: by its name, or by what it makes."""
    return str(node.name or node.output[0])


def reads(node: onnx.NodeProto) -> list[str]:
    """What a node reads, its bodies included."""
    bodies = [a.g for a in node.attribute if a.HasField("g")]
    bodies += [graph for a in node.attribute for graph in a.graphs]
    found = [str(name) for name in node.input if name]
    return found + [name for body in bodies for inner in body.node for name in reads(inner)]


def _shapes(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of the values that have a static one."""
    graph = onnx.shape_inference.infer_shapes(proto).graph
    found = {}
    for value in (*graph.value_info, *graph.input, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            found[value.name] = tuple(d.dim_value for d in tensor.shape.dim)
    return found

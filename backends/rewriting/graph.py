"""The graph that passes change: shapes, constants, readers, and helpers on nodes."""

from __future__ import annotations

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
    """A model's graph with what passes ask for.

    Args:
        proto: the model, whose weights may be in files beside it; changed in place by `replace`.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto
        self.opset = next((o.version for o in proto.opset_import if o.domain in _OURS), 0)
        # Python's objects for a message's parts live only as long as something refers to them.
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
        """The readers of each value; a graph's output, and what a body reads, count as two."""
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
        """Axis, begin and end of a Slice; None where it takes steps, has several axes, or is not constant."""
        shape = self.shapes.get(node.input[0], ())
        given = [self.array(name) for name in node.input[1:]]
        numbers = [int(found.item()) for found in given if found is not None and found.size == 1]
        if not shape or len(numbers) != len(given) or len(numbers) < _ALONG_AN_AXIS:
            return None
        begin, end, axis, *step = numbers
        begin, end, _ = slice(begin, end).indices(shape[axis])
        return (axis % len(shape), begin, end) if step in ([], [1]) else None

    def reduced(self, node: onnx.NodeProto) -> list[int] | None:
        """The axes of a reduction as they are written; None where they are not constant, or none is named."""
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
        """Add a constant with the numbers of another one, in another shape; they may lie outside the file."""
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
        """A Split into parts of these sizes; a runtime folds that of a constant."""
        if self.opset < _SIZES_ARE_AN_INPUT:
            return helper.make_node("Split", [name], parts, name=called_so, axis=axis, split=sizes)
        given = self.integers(f"{called_so}/sizes", sizes)
        return helper.make_node("Split", [name, given], parts, name=called_so, axis=axis)

    def exchange(self, made: Mapping[int, Sequence[onnx.NodeProto]]) -> None:
        """Replace the nodes at some positions by other nodes, or by none."""
        if made:
            self.replace([n for i, node in enumerate(self.nodes) for n in made.get(i, [node])])

    def replace(self, nodes: Sequence[onnx.NodeProto]) -> None:
        """Let the graph have these nodes, in topological order, and the constants that they read."""
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
    """A node's name in profiles: its own, or that of its first output."""
    return str(node.name or node.output[0])


def reads(node: onnx.NodeProto) -> list[str]:
    """The values that a node reads, its bodies included."""
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

"""Images keep their channels first where a model puts them last between convolutions, as ConvNeXt's blocks do.

Models put channels last for a normalization over them and for products. OpenVINO keeps an image's
channels last in memory, whichever axis is theirs, so both Transposes are copies. Here products become
convolutions over one place, and normalizations become means over the axis of the channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import onnx
from onnx import helper

from collage.backends.rewriting.graph import (
    AXES_ARE_AN_INPUT,
    BINARY,
    REDUCTIONS,
    UNARY,
    RewriteGraph,
    attributes,
    called,
    set_attributes,
)
from collage.backends.rewriting.layout_pass import LayoutPass

# Permutations: for each axis of the result, the axis in the other layout.
_TO_LAST, _TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
_CHANNELS_LAST, _CHANNELS_FIRST = 3, 1  # axes
_SOFTMAX_OF_ONE_AXIS = 13  # opset


def keep_channels_first(graph: RewriteGraph) -> int:
    """Apply the pass where that leaves fewer Transposes; returns how many fewer."""
    return max(0, _ChannelsFirst(graph).run())


class _ChannelsFirst(LayoutPass):
    """Images with channels last as images with channels first.

    Attributes:
        found: Transposes removed, less those added.
    """

    tag = "first"
    rank = 4

    def __init__(self, graph: RewriteGraph) -> None:
        super().__init__(graph)
        self._read_first = _read_first(graph)
        self._turned: set[str] = set()  # constants

    def entering(self, name: str, other: str) -> list[onnx.NodeProto]:
        self.found -= 1
        return [helper.make_node("Transpose", [name], [other], name=other, perm=_TO_FIRST)]

    def leaving(self, other: str, name: str) -> list[onnx.NodeProto]:
        self.found -= 1
        return [helper.make_node("Transpose", [other], [name], name=f"{name}/back", perm=_TO_LAST)]

    def other_constant(self, name: str) -> str | None:
        shape, other = self.graph.shapes[name], self.name_of(name)
        if prod(shape) == 1:
            return name
        full = (1,) * (self.rank - len(shape)) + shape
        if prod(full) == full[_CHANNELS_LAST]:
            return self.graph.copied(name, other, tuple(full[axis] for axis in _TO_FIRST))
        if len(shape) < self.rank:
            return None
        if name not in self._turned:
            # A runtime folds it.
            self.make(helper.make_node("Transpose", [name], [other], name=other, perm=_TO_FIRST))
            self._turned.add(name)
        return other

    def convert(self, node: onnx.NodeProto) -> bool:
        if self.graph.is_ours(node, "Transpose"):
            return self._transpose(node)
        if not node.input or len(self.graph.shapes.get(node.input[0], ())) != self.rank:
            return False
        if self.graph.is_ours(node, "MatMul"):
            return self._multiply(node)
        if not self.is_other(node.input[0]) or not self.graph.is_ours(node, *_CONVERTERS):
            return False
        return _CONVERTERS[node.op_type](self, node, self.enter(node.input[0]))

    def _transpose(self, node: onnx.NodeProto) -> bool:
        perm, given = tuple(attributes(node).get("perm", ())), node.input[0]
        if perm == _TO_LAST:
            self.leave(given)
            self.is_made_of(node.output[0], given)
        elif perm == _TO_FIRST and self.is_other(given):
            self.make_plain(
                helper.make_node("Identity", [self.enter(given)], node.output, name=called(node))
            )
        else:
            return False
        self.found += 1
        return True

    def _multiply(self, node: onnx.NodeProto) -> bool:
        given, weights = node.input
        if not self._is_float(weights) or len(self.graph.shapes[weights]) != 2:
            return False
        if not self.is_other(given) and node.output[0] not in self._read_first:
            return False
        read, made = self.graph.shapes[weights]
        name = called(node)
        shape = self.graph.integers(f"{name}/kernels_shape", (made, read, 1, 1))
        turned, kernels = f"{name}/turned", f"{name}/kernels"
        factors = [self.enter(given), kernels]
        self.make(
            helper.make_node("Transpose", [weights], [turned], name=turned, perm=(1, 0)),
            helper.make_node("Reshape", [turned, shape], [kernels], name=kernels),
            helper.make_node("Conv", factors, [self.made_as(node.output[0])], name=name),
        )
        return True

    def _normalize(self, node: onnx.NodeProto, first: str) -> bool:
        given = attributes(node)
        if given.get("axis", -1) not in (-1, _CHANNELS_LAST) or len(node.output) > 1:
            return False
        floats = [name for name in node.input[1:] if self._is_float(name)]
        factors = [turned for name in floats if (turned := self.other_constant(name)) is not None]
        if len(factors) != len(node.input) - 1:
            return False
        scale, *bias = factors
        epsilon = self.graph.constant(
            f"{called(node)}/epsilon", np.array(given.get("epsilon", 1e-5), np.float32)
        )
        centered = self._step(node, "Sub", "centered", first, self._mean(node, "mean", first))
        squares = self._step(node, "Mul", "squares", centered, centered)
        variance = self._step(
            node, "Add", "variance", self._mean(node, "variance_of", squares), epsilon
        )
        deviation = self._step(node, "Sqrt", "deviation", variance)
        kind, last = "Mul", [self._step(node, "Div", "normal", centered, deviation), scale]
        if bias:
            kind, last = "Add", [self._step(node, "Mul", "scaled", *last), *bias]
        self.make(helper.make_node(kind, last, [self.made_as(node.output[0])], name=called(node)))
        return True

    def _is_float(self, name: str) -> bool:
        tensor = self.graph.constants.get(name)
        return tensor is not None and tensor.data_type == onnx.TensorProto.FLOAT

    def _mean(self, node: onnx.NodeProto, step: str, value: str) -> str:
        if self.graph.opset < AXES_ARE_AN_INPUT:
            return self._step(node, "ReduceMean", step, value, axes=[_CHANNELS_FIRST])
        axes = self.graph.integers("collage.channels", [_CHANNELS_FIRST])
        return self._step(node, "ReduceMean", step, value, axes)

    def _step(self, node: onnx.NodeProto, kind: str, step: str, *inputs: str, **given: object) -> str:
        name = f"{called(node)}/{step}"
        self.make(helper.make_node(kind, inputs, [name], name=name, **given))
        return name

    def _reduce(self, node: onnx.NodeProto, first: str) -> bool:
        axes = self.graph.reduced(node)
        if axes is None:
            return False
        over = [_TO_LAST[axis] for axis in axes]
        left = [axis for axis in _TO_LAST if axis not in over]
        if not attributes(node).get("keepdims", 1) and left != sorted(left):
            return False
        self.reduce(node, first, over)
        return True

    def _softmax(self, node: onnx.NodeProto, first: str) -> bool:
        if self.graph.opset < _SOFTMAX_OF_ONE_AXIS:
            return False
        return self._along(node, [first], attributes(node).get("axis", -1))

    def _split(self, node: onnx.NodeProto, first: str) -> bool:
        return self._along(node, [first, *node.input[1:]], attributes(node).get("axis", 0))

    def _concatenate(self, node: onnx.NodeProto, first: str) -> bool:
        if any(name in self.graph.constants for name in node.input):
            return False
        inputs = [first, *(self.enter(name) for name in node.input[1:])]
        return self._along(node, inputs, attributes(node)["axis"])

    def _along(self, node: onnx.NodeProto, inputs: Sequence[str], axis: int) -> bool:
        set_attributes(self.carry(node, inputs), {"axis": _TO_LAST[axis]})
        return True


_CONVERTERS: dict[str, Callable[[_ChannelsFirst, onnx.NodeProto, str], bool]] = {
    **dict.fromkeys(REDUCTIONS, _ChannelsFirst._reduce),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _ChannelsFirst._softmax),
    "LayerNormalization": _ChannelsFirst._normalize,
    "Split": _ChannelsFirst._split,
    "Concat": _ChannelsFirst._concatenate,
}


def _read_first(graph: RewriteGraph) -> set[str]:
    """Values that reach a Transpose to channels first by products and elementwise operators alone."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if graph.is_ours(node, "Transpose") and tuple(attributes(node).get("perm", ())) == _TO_FIRST:
            found.add(node.input[0])
        elif graph.is_ours(node, "MatMul", *UNARY, *BINARY) and found.intersection(node.output):
            found.update(
                name for name in node.input if len(graph.shapes.get(name, ())) == _ChannelsFirst.rank
            )
    return found

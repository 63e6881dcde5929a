"""Convolutions along one axis become convolutions of images of one row, for which runtimes have their best kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from onnx import helper

from collage.backends.rewriting.graph import (
    REDUCTIONS,
    RewriteGraph,
    attributes,
    called,
    set_attributes,
)
from collage.backends.rewriting.layout_pass import LayoutPass

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_CHANNELS, _ROW, _ALONG = 1, 2, 3  # axes of the image
_AXES = {0: 0, 1: _CHANNELS, 2: _ALONG, -3: 0, -2: _CHANNELS, -1: _ALONG}
# Each attribute along the axis of the row.
_BEFORE = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_padding": 0, "output_shape": 1}
_PADS_ARE_AN_INPUT = 11


def conv1d_to_conv2d(graph: RewriteGraph) -> int:
    """Apply the pass; returns how many convolutions there were."""
    return _Conv1dAsConv2d(graph).run()


class _Conv1dAsConv2d(LayoutPass):
    tag = "image"
    rank = 3

    def entering(self, name: str, other: str) -> list[onnx.NodeProto]:
        batch, channels, length = self.graph.shapes[name]
        shape = self.graph.integers(f"{other}/shape", (batch, channels, 1, length))
        return [helper.make_node("Reshape", [name, shape], [other], name=other)]

    def leaving(self, other: str, name: str) -> list[onnx.NodeProto]:
        shape = self.graph.integers(f"{other}/back", self.graph.shapes[name])
        return [helper.make_node("Reshape", [other, shape], [name], name=f"{name}/back")]

    def other_constant(self, name: str) -> str | None:
        shape = self.graph.shapes[name]
        if len(shape) < 2:
            return name
        return self.graph.copied(name, self.name_of(name), (*shape[:-1], 1, shape[-1]))

    def convert(self, node: onnx.NodeProto) -> bool:
        if (
            len(self.graph.shapes.get(node.output[0], ())) != self.rank
            and node.op_type not in REDUCTIONS
        ):
            return False
        if (
            self.graph.is_ours(node, *_CONVOLUTIONS)
            and len(self.graph.shapes.get(node.input[1], ())) == 3
        ):
            return self._convolve(node)
        if (
            not node.input
            or not self.is_other(node.input[0])
            or not self.graph.is_ours(node, *_CONVERTERS)
        ):
            return False
        return _CONVERTERS[node.op_type](self, node, self.enter(node.input[0]))

    def _convolve(self, node: onnx.NodeProto) -> bool:
        weights = node.input[1]
        if (
            weights not in self.graph.constants
            or len(self.graph.shapes.get(node.input[0], ())) != self.rank
        ):
            return False
        wide = self.other_constant(weights)
        assert wide is not None
        _widen(self.carry(node, [self.enter(node.input[0]), wide, *node.input[2:]]))
        self.found += 1
        return True

    def _same(self, node: onnx.NodeProto, first: str) -> bool:
        if len(node.output) > 1:
            return False
        self.carry(node, [first, *node.input[1:]])
        return True

    def _pool(self, node: onnx.NodeProto, first: str) -> bool:
        if len(node.output) > 1:
            return False
        _widen(self.carry(node, [first]))
        return True

    def _concatenate(self, node: onnx.NodeProto, first: str) -> bool:
        if any(name in self.graph.constants for name in node.input):
            return False
        made = self.carry(node, [first, *(self.enter(name) for name in node.input[1:])])
        set_attributes(made, {"axis": _AXES[attributes(node)["axis"]]})
        return True

    def _split(self, node: onnx.NodeProto, first: str) -> bool:
        made = self.carry(node, [first, *node.input[1:]])
        set_attributes(made, {"axis": _AXES[attributes(node).get("axis", 0)]})
        return True

    def _pad(self, node: onnx.NodeProto, first: str) -> bool:
        has_axes = len(node.input) > 3 and node.input[3]
        if self.graph.opset < _PADS_ARE_AN_INPUT or has_axes:
            return False
        pads = self.graph.array(node.input[1])
        if pads is None:
            return False
        wide = [*pads[:2], 0, pads[2], *pads[3:5], 0, pads[5]]
        pads_of_it = self.graph.integers(f"{called(node)}/pads", (int(pad) for pad in wide))
        self.carry(node, [first, pads_of_it, *node.input[2:]])
        return True

    def _slice(self, node: onnx.NodeProto, first: str) -> bool:
        axes = self.graph.array(node.input[3]) if len(node.input) > 3 else None
        if axes is None:
            return False
        wide = self.graph.integers(f"{called(node)}/axes", (_AXES[int(axis)] for axis in axes))
        self.carry(node, [first, *node.input[1:3], wide, *node.input[4:]])
        return True

    def _reduce(self, node: onnx.NodeProto, first: str) -> bool:
        axes = self.graph.reduced(node)
        if axes is None:
            return False
        wide = {_AXES[axis] for axis in axes}
        if len(wide) > 1 or not attributes(node).get("keepdims", 1):
            wide.add(_ROW)
        self.reduce(node, first, wide)
        return True


_CONVERTERS: dict[str, Callable[[_Conv1dAsConv2d, onnx.NodeProto, str], bool]] = {
    **dict.fromkeys(
        ("BatchNormalization", "GlobalAveragePool", "GlobalMaxPool", "InstanceNormalization"),
        _Conv1dAsConv2d._same,
    ),
    **dict.fromkeys(("AveragePool", "MaxPool"), _Conv1dAsConv2d._pool),
    "Concat": _Conv1dAsConv2d._concatenate,
    "Split": _Conv1dAsConv2d._split,
    "Pad": _Conv1dAsConv2d._pad,
    "Slice": _Conv1dAsConv2d._slice,
    **dict.fromkeys(REDUCTIONS, _Conv1dAsConv2d._reduce),
}


def _widen(node: onnx.NodeProto) -> None:
    given = attributes(node)
    wide: dict[str, Any] = {n: [before, *given[n]] for n, before in _BEFORE.items() if n in given}
    if "pads" in given:
        begin, end = given["pads"]
        wide["pads"] = [0, begin, 0, end]
    set_attributes(node, wide)

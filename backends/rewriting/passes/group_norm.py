"""Group normalization without Reshapes.

Exporters write an instance normalization between two Reshapes, and OpenVINO, which keeps channels last,
copies for each Reshape. One group becomes a normalization of all axes, several groups become means per
channel, and a group per channel becomes an instance normalization.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from collage.backends.rewriting.graph import AXES_ARE_AN_INPUT, RewriteGraph, attributes, called

_CHAIN = "Reshape", "InstanceNormalization", "Reshape"


def expand_group_norm(graph: RewriteGraph) -> int:
    """Apply the pass; returns how many group normalizations there were."""
    readers = graph.readers()
    places = {node.output[0]: place for place, node in enumerate(graph.nodes)}
    made: dict[int, list[onnx.NodeProto]] = {}
    for place, norm in enumerate(graph.nodes):
        if not graph.is_ours(norm, "InstanceNormalization"):
            continue
        before, after = places.get(norm.input[0]), readers[norm.output[0]]
        if before is None or len(after) != 1 or len(readers[norm.input[0]]) != 1:
            continue
        chain = (graph.nodes[before], norm, after[0])
        if not all(graph.is_ours(node, kind) for node, kind in zip(chain, _CHAIN, strict=True)):
            continue
        whole = _Norm(graph, chain)
        if not whole.is_one:
            continue
        made |= {before: [], place: [], places[chain[2].output[0]]: whole.nodes()}
    graph.exchange(made)
    return len(made) // len(_CHAIN)


class _Norm:
    """One group normalization.

    Args:
        chain: the Reshape before, the instance normalization, the Reshape after.
    """

    def __init__(self, graph: RewriteGraph, chain: Sequence[onnx.NodeProto]) -> None:
        self._graph = graph
        before, self._norm, after = chain
        self._given, self._result = before.input[0], after.output[0]
        self._name = called(after)
        self._shape = graph.shapes.get(self._given, ())
        self._grouped = graph.shapes.get(self._norm.input[0], ())
        self._nodes: list[onnx.NodeProto] = []

    @property
    def is_one(self) -> bool:
        """Whether these nodes are a group normalization and nothing else."""
        if len(self._shape) < 3 or len(self._grouped) < 3 or self._shape[0] != self._grouped[0]:
            return False
        if self._graph.shapes.get(self._result) != self._shape or self._shape[1] % self._grouped[1]:
            return False
        scale, bias = (self._graph.array(name) for name in self._norm.input[1:3])
        if scale is None or bias is None or scale.dtype != np.float32:
            return False
        return bool(np.all(scale == 1) and np.all(bias == 0))

    def nodes(self) -> list[onnx.NodeProto]:
        """The nodes that take the place of these."""
        if self._grouped[1] == self._shape[1]:
            scaled = list(self._norm.input[1:3])
            self._add(
                "InstanceNormalization", self._result, self._given, *scaled, epsilon=self._epsilon
            )
        elif self._grouped[1] == 1:
            self._all_at_once()
        else:
            self._by_channel()
        return self._nodes

    def _all_at_once(self) -> None:
        axes = range(1, len(self._shape))
        centered = self._add("Sub", "centered", self._given, self._mean("mean", self._given, axes))
        # OpenVINO knows a normalization by its Pow and Div.
        two = self._graph.constant("collage.two", np.array(2, np.float32))
        variance = self._mean("variance", self._add("Pow", "squared", centered, two), axes)
        self._add("Div", self._result, centered, self._deviation(variance))

    def _by_channel(self) -> None:
        mean = self._spread("mean", self._group("mean", self._given))
        centered = self._add("Sub", "centered", self._given, mean)
        variance = self._group("variance", self._add("Mul", "squared", centered, centered))
        factor = self._spread("factor", self._add("Reciprocal", "factor_of", self._deviation(variance)))
        self._add("Mul", self._result, centered, factor)

    @property
    def _epsilon(self) -> float:
        return float(attributes(self._norm).get("epsilon", 1e-5))

    def _deviation(self, variance: str) -> str:
        epsilon = self._graph.constant(f"{self._name}/epsilon", np.array(self._epsilon, np.float32))
        return self._add("Sqrt", "deviation", self._add("Add", "variance_and", variance, epsilon))

    def _group(self, step: str, value: str) -> str:
        """Means of the groups, of which all channels have as many places: [N, G, 1]."""
        batch, channels, groups = self._shape[0], self._shape[1], self._grouped[1]
        per_channel = self._mean(f"{step}_by_channel", value, range(2, len(self._shape)))
        grouped = self._shaped(f"{step}_grouped", per_channel, (batch, groups, channels // groups))
        return self._mean(f"{step}_by_group", grouped, [2])

    def _spread(self, step: str, value: str) -> str:
        """A number of each group for each of its channels: [N, C, 1, 1]."""
        batch, channels, groups = self._shape[0], self._shape[1], self._grouped[1]
        shape = self._graph.integers(f"{self._name}/{step}_shape", (batch, groups, channels // groups))
        wide = self._add("Expand", f"{step}_wide", value, shape)
        return self._shaped(f"{step}_spread", wide, (batch, channels, *[1] * (len(self._shape) - 2)))

    def _shaped(self, step: str, value: str, shape: Sequence[int]) -> str:
        return self._add("Reshape", step, value, self._graph.integers(f"{self._name}/{step}_as", shape))

    def _mean(self, step: str, value: str, axes: Sequence[int]) -> str:
        if self._graph.opset < AXES_ARE_AN_INPUT:
            return self._add("ReduceMean", step, value, axes=list(axes), keepdims=1)
        given = self._graph.integers(f"{self._name}/{step}_axes", axes)
        return self._add("ReduceMean", step, value, given, keepdims=1)

    def _add(self, kind: str, step: str, *inputs: str, **given: object) -> str:
        is_last = step == self._result
        made = step if is_last else f"{self._name}/{step}"
        name = self._name if is_last else made
        self._nodes.append(helper.make_node(kind, inputs, [made], name=name, **given))
        return made

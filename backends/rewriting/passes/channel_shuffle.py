"""Channel shuffles go into the weights of the convolutions that read them.

A shuffle, a concatenation or a split of channels only moves them. A convolution over all channels, or
one of each, reads the channels as they lie in memory, with its weights in that order.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from collage.backends.rewriting.graph import RewriteGraph, attributes, called, reads

_CHANNELS = 1  # axis
_GROUPS_MET = (0, 2, 1, 3, 4)
_ENDS_ARE_INPUTS = 10  # of Slice, from this opset
_IMAGE = 4  # axes

# The source of each channel of a value: another value, and the number of a channel of it.
_Order = tuple[tuple[str, int], ...]


def absorb_shuffles(graph: RewriteGraph) -> int:
    """Apply the pass; returns how many fewer shuffles there are."""
    return _Shuffles(graph).run()


class _Shuffles:
    def __init__(self, graph: RewriteGraph) -> None:
        self._graph = graph
        self._makers = {name: node for node in graph.nodes for name in node.output}
        self._readers = graph.readers()
        # By result: source and number of groups.
        self._shuffles: dict[str, tuple[str, int]] = {}
        self._inside: set[str] = set()  # values within a shuffle
        for node in graph.nodes:
            self._note(node)
        self._orders: dict[str, _Order] = {}
        self._there: dict[_Order, str] = {}
        self._settled: set[str] = set()
        self._made: list[onnx.NodeProto] = []
        self._found = len(self._shuffles)

    def run(self) -> int:
        """Replace all that can be."""
        if not self._shuffles or self._graph.opset < _ENDS_ARE_INPUTS:
            return 0
        for node in self._graph.nodes:
            if node.output[0] in self._inside or self._move(node) or self._convolve(node):
                continue
            for name in reads(node):
                self._settle(name)
            self._made.append(node)
        for output in self._graph.proto.graph.output:
            self._settle(output.name)
        if self._found > 0:
            self._graph.replace(self._made)
        return max(0, self._found)

    def _note(self, node: onnx.NodeProto) -> None:
        """Remember a shuffle by its Transpose, between two Reshapes."""
        perm = tuple(attributes(node).get("perm", ()))
        if not self._graph.is_ours(node, "Transpose") or perm != _GROUPS_MET:
            return
        before, after = self._makers.get(node.input[0]), self._readers[node.output[0]]
        if before is None or len(after) != 1 or len(self._readers[before.output[0]]) != 1:
            return
        if not self._graph.is_ours(before, "Reshape") or not self._graph.is_ours(after[0], "Reshape"):
            return
        whole, grouped = (self._graph.shapes.get(n, ()) for n in (before.input[0], node.input[0]))
        made = self._graph.shapes.get(after[0].output[0], ())
        if len(whole) == _IMAGE and made == whole == (grouped[0], whole[1], *grouped[3:]):
            self._shuffles[after[0].output[0]] = before.input[0], grouped[1]
            self._inside |= {before.output[0], node.output[0]}

    def _order(self, name: str) -> _Order:
        return self._orders.get(name) or tuple(
            (name, i) for i in range(self._graph.shapes[name][_CHANNELS])
        )

    def _move(self, node: onnx.NodeProto) -> bool:
        """Note where the channels of a node that only moves them come from."""
        result = node.output[0]
        if result in self._shuffles:
            source, groups = self._shuffles[result]
            order = self._order(source)
            size = len(order) // groups
            self._orders[result] = tuple(
                order[g * size + i] for i in range(size) for g in range(groups)
            )
        elif any(len(self._graph.shapes.get(n, ())) != _IMAGE for n in (*node.input[:1], *node.output)):
            return False
        elif self._graph.is_ours(node, "Concat") and self._is_of_channels(node):
            if any(len(self._graph.shapes.get(name, ())) != _IMAGE for name in node.input):
                return False
            is_moved = any(name in self._orders for name in node.input)
            if not is_moved and not any(source == result for source, _ in self._shuffles.values()):
                return False
            self._orders[result] = tuple(place for name in node.input for place in self._order(name))
        elif node.input and node.input[0] in self._orders:
            return self._part(node, self._orders[node.input[0]])
        else:
            return False
        return True

    def _part(self, node: onnx.NodeProto, order: _Order) -> bool:
        if self._graph.is_ours(node, "Split") and self._is_of_channels(node):
            begin = 0
            for name in node.output:
                end = begin + self._graph.shapes[name][_CHANNELS]
                self._orders[name] = order[begin:end]
                begin = end
            return True
        cut = self._graph.cut(node) if self._graph.is_ours(node, "Slice") else None
        if cut is None or cut[0] != _CHANNELS:
            return False
        self._orders[node.output[0]] = order[cut[1] : cut[2]]
        return True

    def _is_of_channels(self, node: onnx.NodeProto) -> bool:
        axis: int = attributes(node).get("axis", 0)
        return axis % _IMAGE == _CHANNELS

    def _convolve(self, node: onnx.NodeProto) -> bool:
        """Give a convolution that reads moved channels its weights in the order in memory."""
        if not self._graph.is_ours(node, "Conv") or node.input[0] not in self._orders:
            return False
        if any(name and name not in self._graph.constants for name in node.input[1:]):
            return False
        order = self._orders[node.input[0]]
        groups, read = attributes(node).get("group", 1), self._graph.shapes[node.input[1]][1]
        if len(set(order)) != len(order) or (groups, read) not in ((1, len(order)), (len(order), 1)):
            return False
        lying = self._lying(order)
        stands = {place: i for i, place in enumerate(order)}
        which = [stands[place] for place in lying]
        is_by_channel = groups > 1
        if is_by_channel and self._graph.shapes[node.output[0]][_CHANNELS] != groups:
            return False
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.input[0] = self._together(lying)
        if which != sorted(which):
            made.input[1] = self._chosen(node, node.input[1], which, 0 if is_by_channel else 1)
            if is_by_channel:
                if len(node.input) > 2 and node.input[2]:
                    made.input[2] = self._chosen(node, node.input[2], which, 0)
                made.output[0] = f"{node.output[0]}/lying"
                self._graph.shapes[made.output[0]] = self._graph.shapes[node.output[0]]
                place = {channel: (made.output[0], i) for i, channel in enumerate(which)}
                self._orders[node.output[0]] = tuple(place[i] for i in range(groups))
        self._made.append(made)
        return True

    def _chosen(self, node: onnx.NodeProto, weights: str, which: Sequence[int], axis: int) -> str:
        """Weights in another order; a runtime folds the Gather."""
        result = f"{called(node)}/{weights}/lying"
        places = self._graph.integers(f"{called(node)}/which", which)
        self._made.append(
            helper.make_node("Gather", [weights, places], [result], name=result, axis=axis)
        )
        return result

    def _lying(self, order: _Order) -> _Order:
        """The same channels in the order in memory, value by value."""
        values = {value: i for i, value in enumerate(dict.fromkeys(value for value, _ in order))}
        return tuple(sorted(order, key=lambda place: (values[place[0]], place[1])))

    def _together(self, order: _Order) -> str:
        """The value that has these channels, made once."""
        if order in self._there:
            return self._there[order]
        pieces: list[tuple[str, int, int]] = []
        for value, channel in order:
            if pieces and pieces[-1][0] == value and pieces[-1][2] == channel:
                pieces[-1] = (value, pieces[-1][1], channel + 1)
            else:
                pieces.append((value, channel, channel + 1))
        parts = [self._piece(value, begin, end) for value, begin, end in pieces]
        result = parts[0]
        if len(parts) > 1:
            result = f"collage.channels/{len(self._there)}/{order[0][0]}"
            self._made.append(helper.make_node("Concat", parts, [result], name=result, axis=_CHANNELS))
        self._there[order] = result
        return result

    def _piece(self, value: str, begin: int, end: int) -> str:
        if end - begin == self._graph.shapes[value][_CHANNELS]:
            return value
        result = f"{value}/{begin}to{end}"
        if result not in self._settled:
            at = [self._graph.integers(f"collage.at/{n}", [n]) for n in (begin, end, _CHANNELS)]
            self._made.append(helper.make_node("Slice", [value, *at], [result], name=result))
            self._settled.add(result)
        return result

    def _settle(self, name: str) -> None:
        """Make a moved value itself, for nodes that cannot read it in another order."""
        if name not in self._orders or name in self._settled:
            return
        order = self._orders[name]
        lying = self._lying(order)
        together = self._together(lying)
        if lying == order:
            self._made.append(helper.make_node("Identity", [together], [name], name=f"{name}/there"))
        else:
            self._found -= 1
            lies = {place: i for i, place in enumerate(lying)}
            which = self._graph.integers(f"{name}/places", [lies[place] for place in order])
            given, called_so = [together, which], f"{name}/order"
            self._made.append(helper.make_node("Gather", given, [name], name=called_so, axis=_CHANNELS))
        self._settled.add(name)

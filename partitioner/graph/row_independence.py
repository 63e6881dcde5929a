"""Proves on a graph that rows along a dimension of its inputs do not touch each other.

Terms: *rows* are the slices of a value along one axis, in groups of equal size, one group for each row of the inputs.
A *size* is an integer that follows from how many rows there are. It may say shapes, but is no data.

Where the proof holds, more rows at the end of the inputs add groups at the end of the outputs, and change no other.

Invariant: an operator that is not known here refuses. Shapes are those of one number of rows above 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.graph.row_operators import (
    ALIKE,
    ALONE_FROM,
    ALONG,
    SAMPLE,
    SOFTMAXES,
    USUAL_AXIS,
    ints_of,
)


@dataclass(frozen=True)
class Rows:
    """A value with rows: along an axis, so many positions for each."""

    axis: int
    group: int = 1


@dataclass(frozen=True)
class Sizes:
    """A list of integers, or one: which of them follow from the number of rows."""

    is_size: tuple[bool, ...]


State = Rows | Sizes | None  # None: the value is the same for each number of rows


class RowsMixError(CollageError):
    """Rows are not independent, or that is not proven; the message names the node."""


def rows_of_outputs(index: GraphIndex, inputs: Mapping[str, int], count: int) -> dict[str, Rows]:
    """Where the rows of each output are.

    Args:
        index: a graph whose shapes are known.
        inputs: the axis of rows of each input that has them.
        count: how many rows there are, at least 2.

    Raises:
        RowsMixError: a node mixes rows, or it is not known whether it does.
    """
    return _Proof(index, count).outputs({name: Rows(axis) for name, axis in inputs.items()})


class _Proof:
    def __init__(self, index: GraphIndex, count: int) -> None:
        self._index, self._count = index, count
        self._states: dict[str, State] = {}

    def outputs(self, inputs: Mapping[str, Rows]) -> dict[str, Rows]:
        self._states = dict(inputs)
        for node in self._index.nodes:
            used = [self._states.get(name) for name in node.used]
            if not any(used):
                continue
            if any(
                not self._index.values[name].is_static for name in (*node.used, *node.outputs) if name
            ):
                raise RowsMixError(f"node {node.name!r} ({node.op}) has values of unknown shape")
            rule = _RULES.get(node.op) if not node.has_body else None
            found = None if rule is None else rule(self, node)
            if found is None:
                raise RowsMixError(f"node {node.name!r} ({node.op}) may mix rows")
            for name, state in zip(node.outputs, found, strict=False):
                if name:
                    self._states[name] = self._checked(node, name, state)
        made = {name: self._states.get(name) for name in self._index.outputs}
        if wrong := [name for name, state in made.items() if isinstance(state, Sizes)]:
            raise RowsMixError(f"output {wrong[0]!r} tells how many rows there are")
        return {name: state for name, state in made.items() if isinstance(state, Rows)}

    def _checked(self, node: NodeInfo, name: str, state: State) -> State:
        if isinstance(state, Rows):
            shape = self.shape(name)
            if state.axis >= len(shape) or shape[state.axis] != state.group * self._count:
                raise RowsMixError(f"node {node.name!r} ({node.op}) makes {name!r} with other rows")
        return None if isinstance(state, Sizes) and not any(state.is_size) else state

    def shape(self, name: str) -> tuple[int, ...]:
        return self._index.values[name].static_shape

    def state(self, node: NodeInfo, position: int) -> State:
        return self._states.get(node.inputs[position]) if position < len(node.inputs) else None

    def only_first(self, node: NodeInfo) -> Rows | None:
        """The rows of the first input; None where it has none, or another input depends on rows too."""
        first = self.state(node, 0)
        rest = any(self._states.get(name) for name in (*node.inputs[1:], *node.captured))
        return first if isinstance(first, Rows) and not rest else None

    # Each rule gives the states of a node's outputs, or None where it cannot say that rows stay apart.

    def alike(self, node: NodeInfo) -> list[State] | None:
        """Elementwise, after shapes are made alike by broadcasting."""
        states = [self._states.get(name) for name in node.inputs]
        if any(isinstance(state, Sizes) for state in states):
            return self._of_sizes(node, states)
        rank = len(self.shape(node.outputs[0]))
        found = {
            (state.axis + rank - len(self.shape(name)), state.group)
            for name, state in zip(node.inputs, states, strict=True)
            if isinstance(state, Rows)
        }
        if len(found) != 1:
            return None
        axis, group = found.pop()
        for name, state in zip(node.inputs, states, strict=True):
            own = axis - rank + len(self.shape(name)) if name else -1
            if state is None and own >= 0 and self.shape(name)[own] != 1:
                return None  # a constant has one place for each row
        return [Rows(axis, group)] * len(node.outputs)

    def _of_sizes(self, node: NodeInfo, states: Sequence[State]) -> list[State] | None:
        """Arithmetic on integers that tell shapes."""
        integer = self._index.values[node.outputs[0]].dtype in ("int64", "int32", "bool")
        if not integer or any(isinstance(state, Rows) for state in states):
            return None
        length = max(len(state.is_size) for state in states if isinstance(state, Sizes))
        length = max([length, *(math.prod(self.shape(name)) for name in node.inputs if name)])
        each = [
            state.is_size * (length if len(state.is_size) == 1 else 1)
            for state in states
            if isinstance(state, Sizes)
        ]
        if any(len(flags) != length for flags in each):
            return None
        return [Sizes(tuple(map(any, zip(*each, strict=True))))]

    def sample(self, node: NodeInfo) -> list[State] | None:
        """Operators that compute each element of axis 0 alone."""
        rows = self.only_first(node)
        if rows is None or rows.axis != 0 or node.attributes.get("training_mode", 0):
            return None
        return [rows] * len(node.outputs)

    def along(self, node: NodeInfo) -> list[State] | None:
        """Operators along axes that their attributes name."""
        rows, rank = self.only_first(node), len(self.shape(node.inputs[0]))
        if rows is None:
            return None
        axes = self._axes(node, rank)
        if axes is None or rows.axis in axes:
            return None
        kept = len(self.shape(node.outputs[0])) == rank
        axis = rows.axis if kept else rows.axis - sum(a < rows.axis for a in axes)
        return [Rows(axis, rows.group)] * len(node.outputs)

    def _axes(self, node: NodeInfo, rank: int) -> set[int] | None:
        """The axes that an operator works along; None where they are not known."""
        given = node.attributes.get("axes", node.attributes.get("axis"))
        if given is None and node.op.startswith("Reduce") and len(node.inputs) > 1 and node.inputs[1]:
            constant = self._index.constant_values.get(node.inputs[1])
            if constant is None:
                return None
            given = tuple(int(i) for i in constant.reshape(-1)) or None  # an empty list stands for all
        if given is None:
            flattens = node.op in SOFTMAXES and node.opset < ALONE_FROM
            given = 1 if flattens else USUAL_AXIS.get(node.op, tuple(range(rank)))
        axes = {axis % rank for axis in ints_of(given)}
        follows = node.op in ("LayerNormalization", "RMSNormalization") or (
            node.op in SOFTMAXES and node.opset < ALONE_FROM
        )
        return set(range(min(axes), rank)) if follows and axes else axes

    def product(self, node: NodeInfo) -> list[State] | None:
        """A matrix product: rows are batches of both, or not what is summed over."""
        a, b = self.state(node, 0), self.state(node, 1)
        left, right = (self.shape(name) for name in node.inputs[:2])
        rank = len(self.shape(node.outputs[0]))
        if min(len(left), len(right)) < 2:  # a vector
            is_plain = isinstance(a, Rows) and b is None and a.axis < len(left) - 1
            return [a] if is_plain else None
        if isinstance(a, Rows) and isinstance(b, Rows):
            axes = {a.axis + rank - len(left), b.axis + rank - len(right)}
            batches = a.axis < len(left) - 2 and b.axis < len(right) - 2
            same = len(axes) == 1 and a.group == b.group
            return [Rows(axes.pop(), a.group)] if batches and same else None
        if isinstance(a, Rows) and b is None and a.axis < len(left) - 1:
            axis = a.axis + rank - len(left)
            other = axis - rank + len(right)
            is_batch = a.axis < len(left) - 2
            return None if is_batch and other >= 0 and right[other] != 1 else [Rows(axis, a.group)]
        if isinstance(b, Rows) and a is None and b.axis < len(right) - 2:
            axis = b.axis + rank - len(right)
            other = axis - rank + len(left)
            return None if other >= 0 and left[other] != 1 else [Rows(axis, b.group)]
        return None

    def gemm(self, node: NodeInfo) -> list[State] | None:
        rows = self.only_first(node)
        if rows is None or rows.axis != (1 if node.attributes.get("transA", 0) else 0):
            return None
        if len(node.inputs) > 2 and node.inputs[2]:
            bias = self.shape(node.inputs[2])
            if len(bias) == 2 and bias[0] != 1:
                return None
        return [Rows(0, rows.group)]

    def transpose(self, node: NodeInfo) -> list[State] | None:
        rows, rank = self.only_first(node), len(self.shape(node.inputs[0]))
        order = ints_of(node.attributes.get("perm", range(rank - 1, -1, -1)))
        return None if rows is None else [Rows(order.index(rows.axis), rows.group)]

    def reshape(self, node: NodeInfo) -> list[State] | None:
        """Elements keep their order, so rows stay where as many elements lie before each group."""
        state = self.state(node, 0)
        if isinstance(state, Sizes):
            return [state] if math.prod(self.shape(node.outputs[0])) == len(state.is_size) else None
        if not isinstance(state, Rows) or any(
            isinstance(self.state(node, i), Rows) for i in range(1, len(node.inputs))
        ):
            return None
        before, shape = self.shape(node.inputs[0]), self.shape(node.outputs[0])
        if 0 in before:
            return None
        ahead = math.prod(before[: state.axis])
        for axis, size in enumerate(shape):
            if math.prod(shape[:axis]) == ahead and size % self._count == 0:
                return [Rows(axis, size // self._count)]
        return None

    def concat(self, node: NodeInfo) -> list[State] | None:
        states = [self._states.get(name) for name in node.inputs]
        if any(isinstance(state, Sizes) for state in states):
            if any(isinstance(state, Rows) for state in states):
                return None
            return [
                Sizes(
                    tuple(
                        flag
                        for name, state in zip(node.inputs, states, strict=True)
                        for flag in (
                            state.is_size
                            if isinstance(state, Sizes)
                            else (False,) * math.prod(self.shape(name))
                        )
                    )
                )
            ]
        rank = len(self.shape(node.outputs[0]))
        (axis,) = (each % rank for each in ints_of(node.attributes["axis"]))
        first, alike = states[0], all(state == states[0] for state in states)
        return [first] if alike and isinstance(first, Rows) and first.axis != axis else None

    def split(self, node: NodeInfo) -> list[State] | None:
        rows, rank = self.only_first(node), len(self.shape(node.inputs[0]))
        along = {axis % rank for axis in ints_of(node.attributes.get("axis", 0))}
        if rows is None or rows.axis in along:
            return None
        return [rows] * len(node.outputs)

    def cut(self, node: NodeInfo) -> list[State] | None:
        """Slice, Pad, Tile, Resize: the axis of rows stays as it is, whole."""
        state = self.state(node, 0)
        if isinstance(state, Sizes):
            return self._cut_sizes(node, state)
        rows = self.only_first(node)
        if rows is None:
            return None
        before, after = self.shape(node.inputs[0]), self.shape(node.outputs[0])
        whole = len(before) == len(after) and before[rows.axis] == after[rows.axis]
        # Reversed, or shifted by padding, an axis keeps its length.
        return [rows] if whole and not self._moves(node, rows.axis, len(before)) else None

    def _moves(self, node: NodeInfo, axis: int, rank: int) -> bool:
        given = [
            None if not name else self._index.constant_values.get(name) for name in node.inputs[1:]
        ]
        values = [None if value is None else value.reshape(-1) for value in given]
        if node.op == "Slice":
            if len(values) < 2 or values[0] is None:
                return True
            axes = range(len(values[0])) if len(values) < 3 or values[2] is None else values[2]
            if len(node.inputs) > 3 and node.inputs[3] and values[2] is None:
                return True
            return axis in [int(a) % rank for a in axes]
        if node.op == "Resize":
            scales = values[1] if len(values) > 1 else None
            return "axes" in node.attributes or scales is None or scales[axis] != 1
        if node.op == "Pad" and not values:
            return True
        if node.op == "Pad":
            axes = values[2] if len(values) > 2 and values[2] is not None else range(rank)
            place = [int(a) % rank for a in axes]
            return values[0] is None or (
                axis in place and any(values[0][place.index(axis) :: len(place)])
            )
        return False

    def _cut_sizes(self, node: NodeInfo, state: Sizes) -> list[State] | None:
        values = [self._index.constant_values.get(name) for name in node.inputs[1:]]
        if node.op != "Slice" or any(value is None for value in values) or len(values) < 2:
            return None
        begin, end = (int(value.reshape(-1)[0]) for value in values[:2] if value is not None)
        step = int(values[3].reshape(-1)[0]) if len(values) > 3 and values[3] is not None else 1
        return [Sizes(state.is_size[begin:end:step])]

    def tell(self, node: NodeInfo) -> list[State] | None:
        state = self.state(node, 0)
        if not isinstance(state, Rows):
            return None
        flags = tuple(i == state.axis for i in range(len(self.shape(node.inputs[0]))))
        usual = (("start", 0), ("end", len(flags)))
        (begin,), (end,) = (ints_of(node.attributes.get(name, size)) for name, size in usual)
        return [Sizes(flags[begin:end])]

    def gather(self, node: NodeInfo) -> list[State] | None:
        data, places = self.state(node, 0), self.state(node, 1)
        if isinstance(data, Sizes):
            chosen = self._index.constant_values.get(node.inputs[1])
            if chosen is None:
                return None
            flags = tuple(data.is_size[int(i)] for i in chosen.reshape(-1))
            return [Sizes(flags) if any(flags) else None]
        axis = int(node.attributes.get("axis", 0)) % len(self.shape(node.inputs[0]))  # type: ignore[call-overload]
        if isinstance(data, Rows) and places is None and data.axis != axis:
            more = len(self.shape(node.inputs[1])) - 1
            return [Rows(data.axis + (more if data.axis > axis else 0), data.group)]
        if data is None and isinstance(places, Rows):
            return [Rows(places.axis + axis, places.group)]
        return None

    def expand(self, node: NodeInfo) -> list[State] | None:
        """Expand and ConstantOfShape: equal rows where a size says how many, and along no other axis."""
        is_new = node.op == "ConstantOfShape"
        given = None if is_new else self.state(node, 0)
        wanted = self.state(node, 0 if is_new else 1)
        shape = self.shape(node.outputs[0])
        if isinstance(given, Sizes) or isinstance(wanted, Rows):
            return None
        flags = wanted.is_size if wanted is not None else ()
        axes = [i + len(shape) - len(flags) for i, flag in enumerate(flags) if flag]
        if given is None:
            if len(axes) != 1 or shape[axes[0]] % self._count:
                return None
            return [Rows(axes[0], shape[axes[0]] // self._count)]
        axis = given.axis + len(shape) - len(self.shape(node.inputs[0]))
        return [Rows(axis, given.group)] if set(axes) <= {axis} else None

    def recurrent(self, node: NodeInfo) -> list[State] | None:
        """LSTM, GRU and RNN: rows are axis 1 of the sequence, and of states."""
        states = [self._states.get(name) for name in node.inputs]
        weights, begins = states[1:5], [s for s in states[5:] if s is not None]
        if states[0] != Rows(1) or any(weights) or any(s != Rows(1) for s in begins):
            return None
        if (
            any(node.inputs[4:5])
            or node.attributes.get("layout", 0)
            or len(begins) != sum(map(bool, node.inputs[5:7]))
        ):
            return None
        made: list[State] = [Rows(2), Rows(1), Rows(1)]
        return made[: len(node.outputs)]


_Rule = Callable[[_Proof, NodeInfo], list[State] | None]
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(ALIKE.split(), _Proof.alike),
    **dict.fromkeys(SAMPLE.split(), _Proof.sample),
    **dict.fromkeys(ALONG.split(), _Proof.along),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _Proof.reshape),
    **dict.fromkeys(("Slice", "Pad", "Tile", "Resize"), _Proof.cut),
    **dict.fromkeys(("Expand", "ConstantOfShape"), _Proof.expand),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _Proof.recurrent),
    "MatMul": _Proof.product,
    "Gemm": _Proof.gemm,
    "Transpose": _Proof.transpose,
    "Concat": _Proof.concat,
    "Split": _Proof.split,
    "Shape": _Proof.tell,
    "Gather": _Proof.gather,
}

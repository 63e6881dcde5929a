"""Recipes of operators with bodies, which read values of the graph around them, and of sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper

from tests.fuzzing import elementwise, layers, movement
from tests.fuzzing.builder import Builder, N, NoFitError, Value, like

_INSIDE = (
    *(elementwise.smooth, elementwise.binary, elementwise.exact_unary, elementwise.clip),
    *(movement.transposed, movement.concatenated, layers.reduced, layers.product),
)

_SEQUENCES_SINCE, _OPTIONALS_SINCE, _SCAN_SINCE = 11, 18, 9


def typed(value: Value) -> onnx.ValueInfoProto:
    """A value as a graph declares its inputs and outputs."""
    number = helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
    return helper.make_tensor_value_info(value.name, number, list(value.shape))


def _body(b: Builder) -> Builder:
    """A body that sees the values around it, weights left out."""
    return Builder(b.rng, b.opset, f"{b.prefix}{b.name('body')}_", list(b.values))


def _grown(body: Builder, count: int) -> None:
    for _ in range(count):
        try:
            body.rng.choice(_INSIDE)(body)
        except NoFitError:
            continue


def _ending(body: Builder, value: Value, shape: Sequence[object]) -> Value:
    """A value made in the body with this shape, from whatever is there."""
    same = [
        v for v in body.values if v.dtype == value.dtype and v.shape == tuple(shape) and v.bound <= 1e3
    ]
    chosen = body.rng.choice(same) if same else value
    # A copy, since a body may not return what it does not make.
    return body.add("Tanh", [chosen], like(chosen, exact=False, bound=1))


def _graph(
    body: Builder, name: str, inputs: Sequence[Value], outputs: Sequence[Value]
) -> onnx.GraphProto:
    return helper.make_graph(
        body.nodes, name, [typed(v) for v in inputs], [typed(v) for v in outputs], body.weights
    )


def branched(b: Builder) -> None:
    """Two bodies, one of which runs."""
    condition = b.pick("bool", rank=(0, 0))
    value = b.pick("float32")
    branches = []
    for _ in range(2):
        body = _body(b)
        _grown(body, b.rng.randint(1, 3))
        end = _ending(body, value, value.shape)
        branches.append(_graph(body, body.prefix, [], [end]))
    made = like(value, exact=False, bound=1)
    b.add("If", [condition], made, then_branch=branches[0], else_branch=branches[1])


def looped(b: Builder) -> None:
    """A body that runs as often as a weight or an input says, and what it makes at each turn."""
    value = b.pick("float32", rank=(0, 3))
    counts = [v for v in b.inputs if v.dtype == "int64" and not v.shape]
    trips = (
        b.rng.choice(counts)
        if counts and b.rng.random() < 0.6
        else b.constant(b.rng.choice([0, 1, 3]), "int64")
    )
    body = _body(b)
    turn, before = (
        Value(body.name("i"), "int64", (), True, 8),
        Value(body.name("c"), "bool", (), True, 1),
    )
    state = Value(body.name("s"), "float32", value.shape, False, value.bound)
    body.values.append(state)
    _grown(body, b.rng.randint(1, 3))
    kept = body.add("Mul", [state, body.constant(np.float32(0.5))], like(state))
    result = body.add("Add", [kept, _ending(body, state, state.shape)], like(state))
    after = body.add("Identity", [before], like(before))
    outputs, made = [after, result], [like(value, exact=False, bound=value.bound + 2)]
    if b.rng.random() < 0.6:
        outputs.append(body.add("Neg", [result], like(result)))
        made.append(like(value, shape=(None, *value.shape), exact=False, bound=value.bound + 2))
    graph = _graph(body, body.prefix, [turn, before, state], outputs)
    b.add(
        "Loop",
        [trips, b.constant(True, "bool") if b.rng.random() < 0.5 else None, value],
        *made,
        body=graph,
    )


def scanned(b: Builder) -> None:
    """A body that runs for each row."""
    value = b.pick("float32", rank=(2, 4), fits=lambda v: v.is_known and 0 not in v.shape)
    row = value.shape[1:]
    if N in row:
        raise NoFitError
    body = _body(b)
    start = b.constant(b.array([int(s or 1) for s in row]))
    state, part = (Value(body.name(k), "float32", row, False, 8) for k in ("s", "x"))
    body.values += [state, part]
    _grown(body, b.rng.randint(0, 2))
    total = body.add("Add", [state, part], like(state))
    result = body.add("Tanh", [total], like(state, bound=1))
    other = body.add("Mul", [part, _ending(body, part, row)], like(part))
    graph = _graph(body, body.prefix, [state, part], [result, other])
    made = like(value, exact=False)
    b.add(
        "Scan",
        [start, value],
        like(value, shape=row, exact=False, bound=1),
        made,
        body=graph,
        num_scan_inputs=1,
    )


def in_sequence(b: Builder) -> None:
    """A value taken apart into a sequence, of which one part is read, or all are joined again."""
    value = b.pick("float32", rank=(2, 4), fits=lambda v: v.is_fixed and (v.shape[0] or 0) > 1)
    if b.opset < _SEQUENCES_SINCE:
        raise NoFitError
    name = b.name("q")
    b.nodes.append(
        helper.make_node("SplitToSequence", [value.name], [name], b.name("SplitToSequence"), axis=0)
    )
    sequence = Value(name, "sequence", (None,))
    if b.rng.random() < 0.5:
        at = b.constant(b.rng.choice([0, 1, -1]), "int64")
        b.add("SequenceAt", [sequence, at], like(value, shape=(1, *value.shape[1:])))
    else:
        b.add("ConcatFromSequence", [sequence], like(value), axis=0)


def gathered_in_sequence(b: Builder) -> None:
    """A sequence put together, changed, counted and joined again."""
    value = b.pick("float32", "int64", rank=(1, 3), fits=lambda v: v.is_fixed)
    parts, names = [value, value], []

    def step(op: str, inputs: Sequence[str], **attributes: object) -> str:
        names.append(b.name("q"))
        b.nodes.append(helper.make_node(op, inputs, names[-1:], b.name(op), **attributes))
        return names[-1]

    if b.opset < _SEQUENCES_SINCE:
        raise NoFitError
    if b.rng.random() < 0.5:
        made = step("SequenceConstruct", [value.name, value.name])
    else:
        number = helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
        made = step("SequenceEmpty", [], dtype=number)
        made = step("SequenceInsert", [made, value.name])
        made = step("SequenceInsert", [made, value.name, b.constant(0, "int64").name])
    if b.rng.random() < 0.4:
        made = step("SequenceErase", [made, b.constant(-1, "int64").name])
        parts.pop()
    sequence = Value(made, "sequence", (None,))
    if b.rng.random() < 0.3:
        b.add("SequenceLength", [sequence], Value("", "int64", (), True, 2))
    else:
        shape = (len(parts), *value.shape)
        b.add("ConcatFromSequence", [sequence], like(value, shape=shape), axis=0, new_axis=1)


def perhaps(b: Builder) -> None:
    """A value that may be missing, and is not."""
    value = b.pick("float32", fits=lambda v: v.is_known)
    if b.opset < _OPTIONALS_SINCE:
        raise NoFitError
    name = b.name("o")
    b.nodes.append(helper.make_node("Optional", [value.name], [name], b.name("Optional")))
    held = Value(name, "sequence", (None,))
    if b.rng.random() < 0.4:
        b.add("OptionalHasElement", [held], Value("", "bool", (), True, 1))
    else:
        b.add("OptionalGetElement", [held], like(value))


def nested(b: Builder) -> None:
    """A branch inside a body that repeats until a condition fails; no count bounds it."""
    value = b.pick("float32", rank=(0, 2))
    body = _body(b)
    turn = Value(body.name("i"), "int64", (), True, 8)
    before = Value(body.name("c"), "bool", (), True, 1)
    state = Value(body.name("s"), "float32", value.shape, False, value.bound)
    body.values.append(state)
    last = body.constant(b.rng.choice([0, 2]), "int64")
    after = body.add("Less", [turn, last], Value("", "bool", (), True, 1))
    branches = []
    for op in ("Tanh", "Sin"):
        inner = _body(body)
        end = inner.add(op, [state], like(state, bound=1))
        branches.append(_graph(inner, inner.prefix, [], [end]))
    changed = body.add(
        "If", [after], like(state, bound=1), then_branch=branches[0], else_branch=branches[1]
    )
    graph = _graph(body, body.prefix, [turn, before, state], [after, changed])
    goes = b.constant(True, "bool")
    b.add("Loop", [None, goes, value], like(value, exact=False, bound=value.bound + 1), body=graph)


def scanned_back(b: Builder) -> None:
    """A body that runs for each column, from the last to the first, of two values."""
    value = b.pick("float32", rank=(2, 3), fits=lambda v: v.is_fixed and 0 not in v.shape)
    if b.opset < _SCAN_SINCE:
        raise NoFitError
    part_shape = (value.shape[0], *value.shape[2:])
    body = _body(b)
    one, two = (Value(body.name(k), "float32", part_shape, False, 8) for k in ("x", "y"))
    body.values += [one, two]
    made = body.add("Sub", [one, two], like(one, bound=2 * value.bound))
    graph = _graph(body, body.prefix, [one, two], [made])
    ways = {"scan_input_axes": [1, 1], "scan_input_directions": [1, 0], "scan_output_axes": [1]}
    result = like(value, exact=False, bound=2 * value.bound)
    b.add("Scan", [value, value], result, body=graph, num_scan_inputs=2, **ways)


RECIPES: tuple[Callable[[Builder], None], ...] = (
    *(branched, looped, looped, scanned, in_sequence),
    *(gathered_in_sequence, perhaps, nested, scanned_back),
)

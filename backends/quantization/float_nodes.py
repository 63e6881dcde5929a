"""Nodes that stay float within an int8 partition: `-float=` beside `-quant=static_int8` or `weights_int8`.

A change between int8 and float inside a runtime costs a fraction of a border between partitions. The
value names nodes by their *position* in the partition, from 0: `-float=0-3,17` keeps the first four and
the eighteenth. The search within an error budget finds it (docs/error-budget.md).

The int8 model of the whole partition is made first and kept; nodes then get their float form back. So
another choice of nodes needs no calibration, and the rest stays the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from collage.backends.options import Option
from collage.backends.quantization.bias_correction import constant_value, shift_name, take_place
from collage.partitioner.candidate import bits
from collage.partitioner.errors import CollageError
from collage.partitioner.lazy import ir
from collage.partitioner.target import Target

_NAME, _NONE = "float", "none"
# A range becomes a set, so its ends are bounded: targets come over the API too.
_RANGE = r"[0-9]{1,5}(-[0-9]{1,5})?"
# The quantizer removes these after an integer kernel.
CLIPPINGS = ("Clip", "Relu")

OPTION = Option(
    _NAME,
    _NONE,
    "Nodes that stay float beside -quant=static_int8 or weights_int8, by position in the partition: 0-3,17.",
    pattern=f"{_NONE}|{_RANGE}(,{_RANGE})*",
)


def with_float(target: Target, positions: Iterable[int]) -> Target:
    """A target that keeps the nodes at these positions float."""
    ranges: list[list[int]] = []
    for position in sorted(positions):
        if ranges and ranges[-1][1] == position - 1:
            ranges[-1][1] = position
        else:
            ranges.append([position, position])
    said = ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in ranges)
    return target.with_options(**{_NAME: said}) if said else target


def without_float(target: Target) -> Target:
    """The same target for any partition."""
    return Target(target.backend, tuple(pair for pair in target.options if pair[0] != _NAME))


def refuse_ranges(target: Target) -> str | None:
    """Why `-float` cannot be read, or None."""
    given = target.option(_NAME, _NONE)
    for part in given.split(",") if given != _NONE else ():
        low, _, high = part.partition("-")
        if int(high or low) < int(low):
            return f"-float={given}: the range {part} ends before it begins; write {high}-{low}"
    return None


def positions_of(target: Target) -> frozenset[int]:
    """Which nodes of a partition a target keeps float; none where it says nothing."""
    given = target.option(_NAME, _NONE)
    found: set[int] = set()
    for part in given.split(",") if given != _NONE else ():
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


def kept_nodes(target: Target, nodes: int) -> int:
    """Which nodes of a partition (bitsets) a target keeps float."""
    kept = positions_of(target)
    return sum(1 << node for position, node in enumerate(bits(nodes)) if position in kept)


def keeping(target: Target, nodes: int, kept: int) -> Target:
    """A target that keeps some nodes of a partition float (bitsets)."""
    return with_float(target, (i for i, node in enumerate(bits(nodes)) if kept >> node & 1))


def kept_values(target: Target, model: ir.Model) -> frozenset[str]:
    """Names of the results of nodes that stay float.

    Args:
        target: with or without `-float`.
        model: the float partition.

    Raises:
        CollageError: it names a node that the partition has not.
    """
    nodes, kept = list(model.graph), positions_of(target)
    if kept and max(kept) >= len(nodes):
        raise CollageError(
            f"-float names node {max(kept)}, and this partition has {len(nodes)}, counted from 0"
        )
    return frozenset(value.name or "" for i in kept for value in nodes[i].outputs)


def keep_float(
    quantized: ir.Model, source: ir.Model, names: Collection[str], rounded_results: bool
) -> None:
    """Give nodes of an int8 model their float form back, in place.

    Args:
        source: the float model that it was made from, nodes by the same names.
        rounded_results: whether float nodes read rounded results of integer kernels, without which the
            runtime has no integer kernel (ONNX Runtime).
    """
    originals = {node.name or "": node for node in source.graph}
    graph = quantized.graph
    rounded = _unround_outputs(graph)
    _bring_clippings_back(graph, source, names)
    for node in list(graph):
        if node.name in names:
            _restore(graph, node, originals[node.name or ""], names, rounded_results)
    for i in rounded if rounded_results else ():
        if _is_made_in_int8(graph.outputs[i], names):
            _give_out(graph, i, _after_rounding(graph.outputs[i]))


def read_unrounded(quantized: ir.Model, source: ir.Model) -> None:
    """Change an int8 model in place so that it has every value of the float model under its name, unrounded.

    Args:
        source: the float model that it was made from, nodes by the same names.
    """
    _unround_outputs(quantized.graph)
    clippings = {node.name or "" for node in source.graph if node.op_type in CLIPPINGS}
    _bring_clippings_back(quantized.graph, source, clippings)


def _unround_outputs(graph: ir.Graph) -> list[int]:
    """Make rounded outputs unrounded; returns their positions."""
    found = {i: _before_rounding(value) for i, value in enumerate(graph.outputs)}
    rounded = {i: before for i, before in found.items() if before is not None}
    for i, before in rounded.items():
        _give_out(graph, i, before)
    return list(rounded)


def _give_out(graph: ir.Graph, position: int, value: ir.Value) -> None:
    """Make a value the graph's output at a position, under the name of the one there."""
    other = graph.outputs[position]
    value.name, other.name = other.name, value.name
    value.type, value.shape = other.type, other.shape
    graph.outputs[position] = value


def _bring_clippings_back(graph: ir.Graph, source: ir.Model, names: Collection[str]) -> None:
    """Insert again the clippings that the quantizer removed, where a node now reads before the rounding."""
    makers = {value.name: node for node in graph for value in node.outputs}
    present = {node.name for node in graph}
    for original in source.graph:
        made = original.outputs[0]
        if original.op_type not in CLIPPINGS or original.name in present or made.name not in makers:
            continue
        before = original.predecessors()
        touched = {original, *before, *(use.node for use in made.uses())}
        if not any(node.name in names for node in touched):
            continue
        value = next(output for output in makers[made.name].outputs if output.name == made.name)
        rest = [_constant(graph, v, original.name or "") for v in original.inputs[1:]]
        attributes = dict(original.attributes)
        clipping = ir.Node("", original.op_type, [value, *rest], attributes, name=original.name)
        take_place(graph, value, clipping, f"{original.name}/unclipped")


def _restore(
    graph: ir.Graph, node: ir.Node, original: ir.Node, names: Collection[str], rounded_results: bool
) -> None:
    """Let a node read float values and float constants, without a correction after it."""
    node.resize_inputs(len(original.inputs))
    for position, given in enumerate(original.inputs):
        value = node.inputs[position]
        if given is None or not given.is_initializer():
            value = _unrounded(value, names, rounded_results)
        elif value is None or not value.is_initializer():
            value = _constant(graph, given, f"{node.name}/float")
        node.replace_input_with(position, value)
    made = node.outputs[0]
    for use in list(made.uses()):
        if use.node.name == shift_name(node):
            added = use.node.outputs[0]
            ir.convenience.replace_all_uses_with(added, made, replace_graph_outputs=True)
            made.name, added.name = added.name, use.node.name
            graph.remove(use.node, safe=True)


def _unrounded(
    value: ir.Value | None, names: Collection[str], rounded_results: bool
) -> ir.Value | None:
    """The value before it was rounded, where it may be read so."""
    before = _before_rounding(value)
    if before is None or (rounded_results and _is_made_in_int8(before, names)):
        return value
    return before


def _before_rounding(value: ir.Value | None) -> ir.Value | None:
    """The value before a pair of nodes rounded it, or None."""
    back = None if value is None else value.producer()
    there = None if back is None or back.op_type != "DequantizeLinear" else back.inputs[0]
    rounding = None if there is None else there.producer()
    return None if rounding is None or rounding.op_type != "QuantizeLinear" else rounding.inputs[0]


def _after_rounding(value: ir.Value) -> ir.Value:
    """The value after a pair of nodes rounded it, where there is one."""
    users = (use.node for use in value.uses())
    pairs = (node for node in users if node.op_type == "QuantizeLinear")
    return next((use.node.outputs[0] for node in pairs for use in node.outputs[0].uses()), value)


def _is_made_in_int8(value: ir.Value, names: Collection[str]) -> bool:
    """Whether an integer kernel makes a value, before clippings."""
    node = value.producer()
    while node is not None:
        if _is_integer(node) and node.name not in names:
            return True
        first = node.inputs[0] if node.op_type in CLIPPINGS else None
        node = None if first is None else first.producer()
    return False


def _is_integer(node: ir.Node) -> bool:
    """Whether a node reads rounded values."""
    makers = (value.producer() for value in node.inputs if value is not None)
    return any(maker is not None and maker.op_type == "DequantizeLinear" for maker in makers)


def _constant(graph: ir.Graph, value: ir.Value | None, prefix: str) -> ir.Value | None:
    """A constant of another model, added to this one."""
    if value is None or value.const_value is None:
        return None
    name = f"{prefix}/{value.name}"
    known = graph.initializers.get(name)
    return known if known is not None else constant_value(graph, name, value.const_value.numpy())

"""Types of sequences and optional values: the library's inference makes tensors of them.

What makes such a value from tensors is known by its operator. What hands one on (Identity, If, Loop) has the type of
what it reads, or of its body's output.
"""

from __future__ import annotations

from collections.abc import Iterator

from collage.partitioner.graph.canonical import bodies_of
from collage.partitioner.lazy import ir

_MAKES_SEQUENCE = frozenset(
    {"SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SplitToSequence"}
)


def mark_sequences(model: ir.Model) -> None:
    """Give sequences and optional values their type back, in place."""
    _mark(model.graph)


def _mark(graph: ir.Graph) -> None:
    for node in graph:
        bodies = [body for attribute in node.attributes.values() for body in bodies_of(attribute)]
        for body in bodies:
            _mark(body)
        if node.domain:
            continue
        for value, kind in _types(node, bodies):
            if isinstance(value.type, ir.TensorType | None):
                value.type, value.shape = kind, None


def _types(node: ir.Node, bodies: list[ir.Graph]) -> Iterator[tuple[ir.Value, ir.TypeProtocol]]:
    """The outputs of a node that are no tensors, with their types."""
    first = node.outputs[0]
    read = [None if value is None else value.type for value in node.inputs]
    if node.op_type in _MAKES_SEQUENCE:
        if isinstance(first.type, ir.TensorType):
            yield first, ir.SequenceType(ir.TensorType(first.type.dtype))
    elif node.op_type == "SequenceMap":
        for body in bodies:
            yield from (
                (value, ir.SequenceType(made.type))
                for value, made in zip(node.outputs, body.outputs, strict=False)
                if made.type is not None
            )
    elif node.op_type == "Optional":
        if read and read[0] is not None:
            yield first, ir.OptionalType(read[0])
    elif node.op_type == "Identity":
        if read and (kind := _held(read[0])) is not None:
            yield first, kind
    elif node.op_type == "OptionalGetElement":
        inner = read[0].elem_type if read and isinstance(read[0], ir.OptionalType) else None
        if (kind := _held(inner)) is not None:
            yield first, kind
    elif node.op_type in ("If", "Loop"):
        for body in bodies:
            # The first output of a Loop's body says whether it goes on.
            made = [value.type for value in body.outputs][node.op_type == "Loop" :]
            yield from (
                (value, held)
                for value, kind in zip(node.outputs, made, strict=False)
                if (held := _held(kind)) is not None
            )


def _held(kind: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    """The type of a sequence or an optional value; None for any other."""
    return kind if isinstance(kind, ir.SequenceType | ir.OptionalType) else None

"""Bytes for plain values and for bodies of nodes that do not depend on any name.

Equal bytes mean equal content: every item carries its kind and its length. Fingerprints are made of
them, so a change here makes every stored cost unknown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np

from collage.partitioner.lazy import ir


def canonical_bytes(value: object) -> bytes:
    """Bytes that are equal for equal values: numbers, text, arrays, sequences and mappings of them."""
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return canonical_bytes((value.shape, tuple(value.ravel().tolist())))
        return canonical_bytes(("array", value.dtype.name, value.shape, value.tobytes()))
    if isinstance(value, np.generic):
        return canonical_bytes(value.item())
    if isinstance(value, Mapping):
        return canonical_bytes(("map", *((k, value[k]) for k in sorted(value))))
    if isinstance(value, (tuple, list)):
        items = [canonical_bytes(item) for item in value]
        return b"(%d:%s)" % (len(items), b"".join(items))
    if isinstance(value, bytes):
        return b"b%d:%s" % (len(value), value)
    text = f"{type(value).__name__}={value!r}".encode()
    return b"t%d:%s" % (len(text), text)


def body_digest(node: ir.Node, given: Iterable[str]) -> str:
    """A digest of what a node's bodies (If, Loop, Scan) compute; empty for a node without bodies.

    The digest does not depend on names: the k-th of `given` (the node's inputs and captured values) is
    recorded as `given k`.
    """
    bodies = {a.name: bodies_of(a) for a in node.attributes.values() if bodies_of(a)}
    if not bodies:
        return ""
    outer = {name: f"given {k}" for k, name in reversed(list(enumerate(given)))}
    content = {name: tuple(_body(body, {}, outer) for body in found) for name, found in bodies.items()}
    return hashlib.sha256(canonical_bytes(content)).hexdigest()


def bodies_of(attribute: ir.Attr) -> list[ir.Graph]:
    """The graphs that an attribute holds."""
    if attribute.type == ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    return list(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else []


def plain_attribute(attribute: ir.Attr) -> object:
    """An attribute that is not a body as a plain Python value."""
    value = attribute.value
    if isinstance(value, ir.TensorProtocol):
        return value.numpy()
    return tuple(value) if isinstance(value, (list, tuple)) else value


def _body(body: ir.Graph, known: Mapping[ir.Value, str], outer: Mapping[str, str]) -> bytes:
    labels = dict(known)

    def define(value: ir.Value) -> object:
        labels[value] = f"local {len(labels)}"
        return (str(value.dtype), str(value.shape))

    def use(value: ir.Value | None) -> str:
        if value is None:
            return "absent"
        return labels.get(value) or outer.get(value.name or "", f"unknown {value.name}")

    inputs = [define(v) for v in body.inputs]
    weights = []
    for value in body.initializers.values():
        define(value)
        weights.append(None if value.const_value is None else value.const_value.numpy())
    steps: list[object] = []
    for node in body:
        attributes = {
            a.name: [_body(inner, labels, outer) for inner in bodies_of(a)] or plain_attribute(a)
            for a in node.attributes.values()
        }
        read = [use(v) for v in node.inputs]
        made = [define(v) for v in node.outputs]
        steps.append((node.domain, node.op_type, attributes, read, made))
    return canonical_bytes((inputs, weights, steps, [use(v) for v in body.outputs]))

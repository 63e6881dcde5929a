"""A frozen view of a model's main graph for partitioning.

Terms: node *i* is the i-th node in a topological order. A *value* is a tensor named by ONNX; it is
*constant* when it is an initializer. Plans do not cover constants: they go with the nodes that read
them. A node with bodies (If, Loop, Scan) is opaque; what its bodies capture from the main graph counts
as its input.

Invariants: node names are unique and not empty; every non-empty input is a graph input, a constant or
the output of a node before it; a node is never among its own ancestors.

Source: TVM v0.18 `src/relay/collage/dataflow_graph.h`, with integers in place of bit vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from collage.partitioner.candidate import bits
from collage.partitioner.errors import ModelError
from collage.partitioner.graph.canonical import bodies_of, body_digest, plain_attribute
from collage.partitioner.lazy import ir
from collage.partitioner.tensor import TensorSpec

_SMALL_ELEMENTS = 1024


@dataclass(frozen=True)
class NodeInfo:
    """One node."""

    index: int  # its position in the topological order
    name: str  # unique in the graph
    op_type: str
    domain: str  # the operator set's domain; empty for ai.onnx
    opset: int  # the version of that operator set that the model imports
    # plain Python values (numbers, text, tuples, numpy arrays); bodies are left out
    attributes: Mapping[str, object]
    inputs: tuple[str, ...]  # value names as the node gives them, empty text for an omitted one
    outputs: tuple[str, ...]  # value names, empty text for an omitted one
    # main-graph values used by its bodies, that are not among its inputs
    captured: tuple[str, ...] = ()
    has_body: bool = False  # True for If, Loop, Scan and the like
    body_ops: frozenset[str] = frozenset()  # operators in its bodies, nested ones too, as `op` has them
    body_digest: str = ""  # says, without names, what its bodies compute; empty without bodies

    @property
    def op(self) -> str:
        """`Conv`, or `com.microsoft::Gelu` outside ai.onnx."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type

    @property
    def used(self) -> tuple[str, ...]:
        """Distinct values it reads, captured ones included."""
        return tuple(dict.fromkeys(v for v in (*self.inputs, *self.captured) if v))


@dataclass(frozen=True, eq=False)
class GraphIndex:
    """Frozen structure of a graph. Two indexes are equal only when they are the same object."""

    nodes: tuple[NodeInfo, ...]  # in topological order
    # every named value, with dtype and shape (unknown type: dtype `unknown`)
    values: Mapping[str, TensorSpec]
    constants: frozenset[str]  # names of initializers
    inputs: tuple[str, ...]  # graph inputs that are not constants, in order
    outputs: tuple[str, ...]  # graph outputs, in order
    predecessors: tuple[int, ...]  # per node the nodes whose outputs it reads (bitset)
    successors: tuple[int, ...]  # per node the nodes that read its outputs (bitset)
    ancestors: tuple[int, ...]  # transitive predecessors (bitset), without itself
    descendants: tuple[int, ...]  # transitive successors (bitset), without itself
    producer: Mapping[str, int]  # value name to node index
    consumers: Mapping[str, int]  # value name to bitset of the nodes that read it
    # small constants (at most 1,024 elements) by value
    constant_values: Mapping[str, np.ndarray] = field(repr=False, hash=False, compare=False)

    @property
    def all_nodes(self) -> int:
        """The bitset of all nodes."""
        return (1 << len(self.nodes)) - 1

    def ancestors_of(self, nodes: int) -> int:
        """All nodes that some node of the set depends on; members of the set may be among them."""
        mask = 0
        for i in bits(nodes):
            mask |= self.ancestors[i]
        return mask

    def descendants_of(self, nodes: int) -> int:
        """All nodes that depend on some node of the set; members of the set may be among them."""
        mask = 0
        for i in bits(nodes):
            mask |= self.descendants[i]
        return mask

    def is_convex(self, nodes: int) -> bool:
        """True when no path leaves the set and comes back."""
        run = nodes >> (nodes & -nodes).bit_length() - 1 if nodes else 0
        if not run & run + 1:  # A run of a topological order is convex.
            return True
        return not self.ancestors_of(nodes) & self.descendants_of(nodes) & ~nodes

    def input_spec(self, node: int, position: int) -> TensorSpec | None:
        """The spec of a node's input, or None where it is omitted."""
        names = self.nodes[node].inputs
        return self.values[names[position]] if position < len(names) and names[position] else None

    @classmethod
    def from_ir(cls, model: ir.Model) -> GraphIndex:
        """Index the main graph of a model.

        Raises:
            ModelError: a node has no name or a name twice, or a value is used before it is made.
        """
        return _build(model)


def _spec(value: ir.Value) -> TensorSpec:
    dtype = "unknown"
    if isinstance(value.type, ir.TensorType) and value.dtype not in (None, ir.DataType.UNDEFINED):
        dtype = value.dtype.numpy().name
    shape = None
    if value.shape is not None:
        shape = tuple(d if isinstance(d, int) else None for d in value.shape)
    return TensorSpec(value.name or "", dtype, shape)


def _bodies(node: ir.Node) -> list[ir.Graph]:
    return [body for attribute in node.attributes.values() for body in bodies_of(attribute)]


def _captured(node: ir.Node, main_values: set[ir.Value]) -> list[str]:
    """Main-graph values that a node's bodies, nested ones too, use without being given them.

    In order of first use, so that the order does not depend on names.
    """
    used: dict[ir.Value | None, None] = {}
    for body in _bodies(node):
        for inner in ir.traversal.RecursiveGraphIterator(body):
            used.update(dict.fromkeys(inner.inputs))
            for deeper in _bodies(inner):
                used.update(dict.fromkeys(deeper.outputs))
        used.update(dict.fromkeys(body.outputs))
    return [v.name for v in used if v is not None and v in main_values and v.name]


def _node_info(i: int, node: ir.Node, model: ir.Model, captured: list[str]) -> NodeInfo:
    attributes = list(node.attributes.values())
    inputs = tuple(v.name or "" if v is not None else "" for v in node.inputs)
    captured = [name for name in captured if name not in inputs]
    return NodeInfo(
        index=i,
        name=node.name or "",
        op_type=node.op_type,
        domain=node.domain,
        opset=model.opset_imports.get(node.domain, 1),
        attributes={a.name: plain_attribute(a) for a in attributes if not bodies_of(a)},
        inputs=inputs,
        outputs=tuple(v.name or "" for v in node.outputs),
        captured=tuple(captured),
        has_body=any(bodies_of(a) for a in attributes),
        body_ops=frozenset(
            f"{inner.domain}::{inner.op_type}" if inner.domain else inner.op_type
            for body in _bodies(node)
            for inner in ir.traversal.RecursiveGraphIterator(body)
        ),
        body_digest=body_digest(node, (*inputs, *captured)),
    )


def _check_names(nodes: list[NodeInfo]) -> None:
    seen: set[str] = set()
    for node in nodes:
        if not node.name or node.name in seen:
            raise ModelError(f"node name {node.name!r} ({node.op}) is missing or not unique")
        seen.add(node.name)


def _build(model: ir.Model) -> GraphIndex:
    graph = model.graph
    main_values = {v for made in graph for v in made.outputs}
    main_values |= {*graph.inputs, *graph.initializers.values()}
    nodes = [_node_info(i, n, model, _captured(n, main_values)) for i, n in enumerate(graph)]
    _check_names(nodes)
    constants = frozenset(graph.initializers)
    inputs = tuple(v.name for v in graph.inputs if v.name and v.name not in constants)
    values = {v.name: _spec(v) for v in (*graph.inputs, *graph.initializers.values()) if v.name}
    for made in graph:
        values |= {v.name: _spec(v) for v in made.outputs if v.name}

    producer: dict[str, int] = {}
    consumers: dict[str, int] = {}
    predecessors: list[int] = []
    ancestors: list[int] = []
    for node in nodes:
        direct = transitive = 0
        for name in node.used:
            consumers[name] = consumers.get(name, 0) | 1 << node.index
            if name in producer:
                made_by = producer[name]
                direct |= 1 << made_by
                transitive |= ancestors[made_by] | 1 << made_by
            elif name not in constants and name not in inputs:
                raise ModelError(f"node {node.name!r} reads {name!r}, which nothing before it makes")
        predecessors.append(direct)
        ancestors.append(transitive)
        producer |= {name: node.index for name in node.outputs if name}

    successors = [0] * len(nodes)
    descendants = [0] * len(nodes)
    for i in reversed(range(len(nodes))):
        for before in bits(predecessors[i]):
            successors[before] |= 1 << i
            descendants[before] |= descendants[i] | 1 << i

    small = {
        name: value.const_value.numpy()
        for name, value in graph.initializers.items()
        if value.const_value is not None and value.const_value.size <= _SMALL_ELEMENTS
    }
    return GraphIndex(
        nodes=tuple(nodes),
        values=values,
        constants=constants,
        inputs=inputs,
        outputs=tuple(v.name or "" for v in graph.outputs),
        predecessors=tuple(predecessors),
        successors=tuple(successors),
        ancestors=tuple(ancestors),
        descendants=tuple(descendants),
        producer=producer,
        consumers=consumers,
        constant_values=small,
    )

"""One name for equal work: the SHA-256 of a sub-graph's canonical form.

Two sub-graphs have one fingerprint exactly when they compute the same thing for the purpose of cost:
same operators, attributes, bodies, wiring, types and shapes, small constants by value and large ones by
type and shape. Names do not count, nor does the order of independent nodes.

Nodes are numbered by a walk from the sinks (nodes that feed nothing inside) along ordered inputs.
Several sinks are taken in the order of hashes of their surroundings; where these are equal, in the
order that gives the least form. The form lists each node's label and the wiring of its inputs:
different wiring never has one fingerprint. (Equal sub-graphs with a symmetry that the hashes miss may
have two; the price is one more measurement.)

A constant counts by value when it has at most `SMALL` elements (scales, bounds) or holds int64, bool or
text (shapes, axes). Biases and weights count by type and shape, so that blocks of a trained model are
alike.

A *symbolic* fingerprint leaves sizes out: values count by type and rank, and so do constants that may follow
a size (a new shape, the bounds of a slice, positions, masks). Operators, attributes, wiring and the shapes of
weights count all the same. It is coarse: a `Reshape` to a constant shape does not say how many heads it makes.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from collage.partitioner.candidate import bits
from collage.partitioner.graph.canonical import canonical_bytes
from collage.partitioner.graph.graph_index import GraphIndex

SMALL = 8

_BY_VALUE = frozenset({"int64", "bool", "object"})
# Inputs of operators that hold sizes of values.
_SIZES = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Pad", "Split", "TopK"), (1,)),
    "ConstantOfShape": (0,),
    "Resize": (3,),
    "Slice": (1, 2),
}
_EVERYWHERE = -1
_TRIED = 16  # of more sinks that look alike than this, the order is taken as it comes


def fingerprint(index: GraphIndex, nodes: int) -> str:
    """The fingerprint of a set of nodes (bitset), as 64 hexadecimal digits."""
    return _known(index, symbolic=False).of(nodes)


def symbolic_fingerprint(index: GraphIndex, nodes: int) -> str:
    """The symbolic fingerprint of a set of nodes (bitset), as 64 hexadecimal digits."""
    return _known(index, symbolic=True).of(nodes)


@dataclass
class _Walk:
    """An unfinished numbering, and the canonical form so far."""

    number: dict[int, int] = field(default_factory=dict)
    outside: dict[int, int] = field(default_factory=dict)
    labels: list[bytes] = field(default_factory=list)
    wiring: list[int] = field(default_factory=list)

    def copy(self) -> _Walk:
        return _Walk(dict(self.number), dict(self.outside), list(self.labels), list(self.wiring))

    @property
    def form(self) -> bytes:
        sizes = (len(self.labels), len(self.wiring))
        numbers = struct.pack(f"<{2 + sizes[1]}q", *sizes, *self.wiring)
        return numbers + b"".join(self.labels)


class _Fingerprints:
    """Fingerprints of one graph's sub-graphs; it does not keep the graph."""

    def __init__(self, index: GraphIndex, symbolic: bool) -> None:
        number: dict[str, int] = {}
        self._labels = [_label(index, i, symbolic) for i in range(len(index.nodes))]
        # Per node and wired input slot: (producer or -1, output slot of it, number of the value).
        self._slots: list[tuple[tuple[int, int, int], ...]] = []
        # Per node and output slot: the nodes that read it; every node when the model returns it.
        self._readers: list[tuple[int, ...]] = []
        made: dict[str, tuple[int, int]] = {}
        returned = frozenset(index.outputs)
        for node in index.nodes:
            used = (*node.inputs, *node.captured)
            names = [n for n in used if n and not _is_told(index, n, symbolic)]
            self._slots.append(
                tuple((*made.get(n, (-1, 0)), number.setdefault(n, len(number))) for n in names)
            )
            made |= {name: (node.index, slot) for slot, name in enumerate(node.outputs)}
            self._readers.append(
                tuple(_EVERYWHERE if n in returned else index.consumers.get(n, 0) for n in node.outputs)
            )
        self._predecessors = index.predecessors
        self._known: dict[int, str] = {}

    def of(self, nodes: int) -> str:
        known = self._known.get(nodes)
        if known is None:
            known = self._known[nodes] = hashlib.sha256(self._form(nodes)).hexdigest()
        return known

    def _form(self, nodes: int) -> bytes:
        members = bits(nodes)
        inside = frozenset(members)
        fed = 0
        for i in members:
            fed |= self._predecessors[i]
        sinks = bits(nodes & ~fed)
        walk = _Walk()
        for alike in self._in_order(nodes, members, sinks):
            while 1 < len(alike) <= _TRIED:
                tried = [(self._walk(walk.copy(), sink, nodes, inside), sink) for sink in alike]
                walk, taken = min(tried, key=lambda choice: choice[0].form)
                alike = [sink for sink in alike if sink != taken]
            for sink in alike:
                walk = self._walk(walk, sink, nodes, inside)
        return walk.form

    def _walk(self, walk: _Walk, sink: int, nodes: int, inside: frozenset[int]) -> _Walk:
        """Number the sink's cone after what is numbered already, in place."""
        number, outside, wiring = walk.number, walk.outside, walk.wiring
        elsewhere = ~nodes
        stack = [sink]
        while stack:
            node = stack[-1]
            if node in number:
                stack.pop()
                continue
            slots = self._slots[node]
            waiting = [before for before, _, _ in slots if before in inside and before not in number]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            number[node] = len(number)
            walk.labels.append(self._labels[node])
            for before, slot, value in slots:
                if before in inside:
                    wiring += (number[before], slot)
                else:
                    wiring += (-1, outside.setdefault(value, len(outside)))
            wiring.extend(1 if readers & elsewhere else 0 for readers in self._readers[node])
        return walk

    def _in_order(self, nodes: int, members: list[int], sinks: list[int]) -> list[list[int]]:
        """The sinks in groups that look alike, the groups in an order that no name decides."""
        if len(sinks) == 1:
            return [sinks]
        looks: dict[int, bytes] = {}
        for i in members:
            wired = [(looks.get(before, b"outside"), slot) for before, slot, _ in self._slots[i]]
            needed = [bool(readers & ~nodes) for readers in self._readers[i]]
            looks[i] = _digest(self._labels[i], wired, needed)
        classes = 0
        while len({looks[sink] for sink in sinks}) < len(sinks) and classes < len(set(looks.values())):
            classes = len(set(looks.values()))
            looks = self._refined(members, looks)
        groups: dict[bytes, list[int]] = {}
        for sink in sinks:
            groups.setdefault(looks[sink], []).append(sink)
        return [groups[look] for look in sorted(groups)]

    def _refined(self, members: list[int], looks: dict[int, bytes]) -> dict[int, bytes]:
        """The looks of nodes with those of all around them: what feeds them, what reads the same."""
        read_by: dict[tuple[int, int, int], list[tuple[bytes, int]]] = {}
        for i in members:
            for at, (before, slot, value) in enumerate(self._slots[i]):
                source = (before, slot, -1) if before in looks else (-1, 0, value)
                read_by.setdefault(source, []).append((looks[i], at))
        met = {source: _digest(sorted(readers)) for source, readers in read_by.items()}
        above: dict[int, list[bytes]] = {i: [] for i in members}
        for (before, slot, _), look in met.items():
            if before >= 0:
                above[before].append(_digest(slot, look))
        refined = {}
        for i in members:
            wired = [
                (looks[before], met[before, slot, -1]) if before in looks else met[-1, 0, value]
                for before, slot, value in self._slots[i]
            ]
            refined[i] = _digest(looks[i], wired, sorted(above[i]))
        return refined


def _digest(*content: object) -> bytes:
    return hashlib.sha256(canonical_bytes(content)).digest()


_KNOWN: WeakKeyDictionary[GraphIndex, dict[bool, _Fingerprints]] = WeakKeyDictionary()


def _known(index: GraphIndex, symbolic: bool) -> _Fingerprints:
    known = _KNOWN.setdefault(index, {})
    if symbolic not in known:
        known.setdefault(symbolic, _Fingerprints(index, symbolic))
    return known[symbolic]


def _by_value(index: GraphIndex, name: str) -> bool:
    """True when a value is a constant that counts by value."""
    if name not in index.constants or name not in index.constant_values:
        return False
    value = index.constant_values[name]
    return value.size <= SMALL or value.dtype.name in _BY_VALUE


def _may_follow(index: GraphIndex, name: str, holds_sizes: bool) -> bool:
    """True when a value is a constant that may be another one at another size."""
    if name not in index.constants or index.values[name].dtype not in _BY_VALUE:
        return False
    value = index.constant_values.get(name)
    return holds_sizes or value is None or value.size > SMALL


def _is_told(index: GraphIndex, name: str, symbolic: bool) -> bool:
    """True when labels of readers say all of a value, so that it is not wired."""
    return _by_value(index, name) or (symbolic and _may_follow(index, name, holds_sizes=False))


def _label(index: GraphIndex, i: int, symbolic: bool) -> bytes:
    """A digest of all that a node is, but for where its inputs come from."""
    node = index.nodes[i]
    sizes = _SIZES.get(node.op, ()) if symbolic else ()
    return _digest(
        node.domain,
        node.op_type,
        node.opset,
        node.attributes,
        node.body_digest,
        [_input_label(index, n, symbolic, slot in sizes) for slot, n in enumerate(node.inputs)],
        [_input_label(index, name, symbolic) for name in node.captured],
        [_type(index, name, symbolic) if name else "absent" for name in node.outputs],
    )


def _input_label(index: GraphIndex, name: str, symbolic: bool, holds_sizes: bool = False) -> object:
    if not name:
        return "absent"
    if symbolic and _may_follow(index, name, holds_sizes):
        return ("sizes", _type(index, name, symbolic))
    if _by_value(index, name):
        return ("value", index.constant_values[name])
    if name in index.constants:
        return ("constant", _type(index, name))
    return ("wired", _type(index, name, symbolic))


def _type(index: GraphIndex, name: str, symbolic: bool = False) -> object:
    """The type and the shape of a value, or its rank."""
    spec = index.values[name]
    return (spec.dtype, len(spec.shape) if symbolic and spec.shape is not None else spec.shape)

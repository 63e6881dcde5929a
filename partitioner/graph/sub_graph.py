"""A sub-graph: a set of nodes of one `GraphIndex`, and what crosses its border.

Terms, as in RFC 0062: a node is *inside*; an *exit* is an inside node whose output is read outside or
is a graph output; an *input* is a value from outside that is read inside (constants are not inputs); an
*output* is a value made inside and needed outside; a *tap* is an exit whose output is also read inside.
*Depth* is the number of nodes on the longest path inside.

A sub-graph is valid under `Limits` when it is convex and does not exceed them.

Source: TVM v0.18 `src/relay/collage/sub_graph.h`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex


@dataclass(frozen=True)
class Limits:
    """Bounds on a valid sub-graph; None is no bound."""

    max_depth: int | None = None
    max_exits: int | None = None
    allow_taps: bool = True


@dataclass(frozen=True)
class SubGraph:
    """A set of nodes (bitset) of a graph."""

    index: GraphIndex
    nodes: int

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The inside nodes in topological order."""
        return tuple(bits(self.nodes))

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Values read inside and made outside, constants left out, in order of first use."""
        names = (name for i in self.members for name in self.index.nodes[i].used)
        return tuple(dict.fromkeys(n for n in names if self._comes_from_outside(n)))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Values made inside and needed outside, in order of their making."""
        names = (name for i in self.members for name in self.index.nodes[i].outputs if name)
        return tuple(n for n in names if self._is_needed_outside(n))

    @cached_property
    def exits(self) -> int:
        """Inside nodes with an output that is needed outside (bitset)."""
        return self._mask(self.index.producer[name] for name in self.outputs)

    @cached_property
    def taps(self) -> int:
        """Exits whose needed output is also read inside (bitset)."""
        read_inside = (n for n in self.outputs if self.index.consumers.get(n, 0) & self.nodes)
        return self._mask(self.index.producer[name] for name in read_inside)

    @cached_property
    def depth(self) -> int:
        """Number of nodes on the longest path inside."""
        longest: dict[int, int] = {}
        for i in self.members:
            before = bits(self.index.predecessors[i] & self.nodes)
            longest[i] = 1 + max((longest[j] for j in before), default=0)
        return max(longest.values(), default=0)

    @property
    def is_convex(self) -> bool:
        """True when no path leaves the sub-graph and comes back."""
        return self.index.is_convex(self.nodes)

    def violation(self, limits: Limits) -> str | None:
        """Why the sub-graph is not valid under the limits, or None when it is."""
        if not self.nodes:
            return "it is empty"
        if not self.is_convex:
            return "a path leaves it and comes back (not convex)"
        if limits.max_depth is not None and self.depth > limits.max_depth:
            return f"its depth {self.depth} exceeds {limits.max_depth}"
        if limits.max_exits is not None and self.exits.bit_count() > limits.max_exits:
            return f"its {self.exits.bit_count()} exits exceed {limits.max_exits}"
        if not limits.allow_taps and self.taps:
            return "it has a tap (an exit that is also read inside)"
        return None

    def _comes_from_outside(self, name: str) -> bool:
        made_by = self.index.producer.get(name)
        if made_by is None:
            return name not in self.index.constants
        return not self.nodes >> made_by & 1

    def _is_needed_outside(self, name: str) -> bool:
        return bool(self.index.consumers.get(name, 0) & ~self.nodes) or name in self.index.outputs

    @staticmethod
    def _mask(indexes: Iterable[int]) -> int:
        mask = 0
        for i in indexes:
            mask |= 1 << i
        return mask

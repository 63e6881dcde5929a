"""What rules see and what they give: a scope, and proposals for candidates.

Terms: a *scope* is one model and which nodes one target takes; a *proposal* is a set of nodes with the
names of the rules that made it and its kind (the greatest kind of its nodes).

Invariant: a note in `Proposals.notes` says that a bound was hit; without notes the proposals are all
that the rule allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.op_kind import OpKind, kind_of
from collage.partitioner.rules.pattern import IndexedModel

Supports = Callable[[GraphIndex, int], str | None]


@dataclass(frozen=True)
class Proposal:
    """A set of nodes (bitset) that a rule offers as one partition."""

    nodes: int
    rule: str
    kind: OpKind


@dataclass(frozen=True)
class Proposals:
    """What a rule found, in order, and which bounds it hit while looking."""

    found: tuple[Proposal, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Scope:
    """A model as one target sees it."""

    model: IndexedModel
    supports: Supports  # None when the target takes a node, else the reason of its refusal

    @property
    def index(self) -> GraphIndex:
        """The index of the model's main graph."""
        return self.model.index

    @cached_property
    def refusals(self) -> tuple[str | None, ...]:
        """Per node why the target refuses it; None where it takes it."""
        return tuple(self.supports(self.index, i) for i in range(len(self.index.nodes)))

    @cached_property
    def supported(self) -> int:
        """The nodes that the target takes (bitset)."""
        return sum(1 << i for i, refusal in enumerate(self.refusals) if refusal is None)

    @cached_property
    def kinds(self) -> tuple[OpKind, ...]:
        """The kind of every node."""
        return tuple(kind_of(node.domain, node.op_type) for node in self.index.nodes)

    @cached_property
    def _of_kind(self) -> dict[OpKind, int]:
        """The nodes of each kind (bitset), the greatest kind first."""
        of_kind = dict.fromkeys(reversed(OpKind), 0)
        for i, kind in enumerate(self.kinds):
            of_kind[kind] |= 1 << i
        return of_kind

    def proposal(self, nodes: int, rule: str) -> Proposal:
        """A proposal of at least one node, with the greatest kind of its nodes."""
        return Proposal(nodes, rule, next(kind for kind, mask in self._of_kind.items() if mask & nodes))


class Rule(Protocol):
    """From a scope to proposals. Rules are frozen values; two equal ones propose the same."""

    @property
    def name(self) -> str:
        """A label for the trail; empty for none."""
        ...

    def candidates(self, scope: Scope) -> Proposals:
        """Everything that the rule proposes in this scope, each set of nodes once."""
        ...


def label(outer: str, inner: str) -> str:
    """The trail of a proposal that passed through one more rule: `outer.inner`."""
    return ".".join(name for name in (outer, inner) if name)


def distinct(proposals: Iterable[Proposal], outer: str = "") -> tuple[Proposal, ...]:
    """Each set of nodes once, under its first name, labeled by an outer rule."""
    found: dict[int, Proposal] = {}
    for p in proposals:
        found.setdefault(p.nodes, Proposal(p.nodes, label(outer, p.rule), p.kind))
    return tuple(found.values())

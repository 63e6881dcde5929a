"""The algebra of rules: which sets of nodes are offered as partitions.

Base rules look at the graph: `PatternRule`, `OpPredicateRule`, `OpKindRule`, `HostRule` and
`regions.RegionRule`. Combinators look at what other rules propose: `UnionRule`, `CombineRule`,
`OnlyValidRule`, `CompositeRule`, `PrimitiveRule`. Rules are frozen values, e.g. what TVM calls
FuseOps::

    PrimitiveRule("kernel", OnlyValidRule(Limits(max_depth=4, max_exits=1, allow_taps=False),
        CombineRule(OpKindRule(), FUSE_OPS)))

Proposals may overlap; the search chooses. Rules for single nodes offer only nodes that the target
takes.

Source: RFC 0062 and TVM v0.18 `src/relay/collage/partition_rule.h`; `CombineRule` follows the RFC, with
bounds, and keeps only convex joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.op_kind import OpKind
from collage.partitioner.graph.sub_graph import Limits, SubGraph
from collage.partitioner.rules.combiners import (
    ByKind,
    Combiner,
    MultiOutputs,
    ProposalPool,
    VariadicInputs,
)
from collage.partitioner.rules.pattern import Pattern
from collage.partitioner.rules.proposal import (
    Proposal,
    Proposals,
    Rule,
    Scope,
    Supports,
    distinct,
    label,
)

FUSE_OPS: tuple[Combiner, ...] = (
    ByKind(OpKind.OUT_FUSABLE, OpKind.BROADCAST),
    ByKind(OpKind.BROADCAST, OpKind.REDUCTION),
    ByKind(OpKind.INJECTIVE, OpKind.INJECTIVE),
    VariadicInputs(),
    MultiOutputs(),
)


@dataclass(frozen=True)
class PatternRule:
    """Every match of a pattern."""

    pattern: Pattern  # named; the name is the rule's
    # also ask the target about every node. A fused kernel may take nodes that the target refuses alone,
    # so this is not the default.
    each_supported: bool = False

    @property
    def name(self) -> str:
        return self.pattern.name

    def candidates(self, scope: Scope) -> Proposals:
        refused = ~scope.supported if self.each_supported else 0
        matches = [nodes for nodes in self.pattern.matches(scope.model) if not nodes & refused]
        return Proposals(distinct(scope.proposal(nodes, self.name) for nodes in matches))


@dataclass(frozen=True)
class OpPredicateRule:
    """Single nodes that the target takes, by operator and predicate."""

    ops: tuple[str, ...] = ("*",)  # globs over `Conv` or `com.microsoft::Gelu`
    predicate: Supports | None = None  # a further reason to refuse a node, or None
    name: str = ""  # the label; without one the operator is

    def candidates(self, scope: Scope) -> Proposals:
        return _singles(scope, self.name, [i for i in bits(scope.supported) if self._takes(scope, i)])

    def _takes(self, scope: Scope, node: int) -> bool:
        op = scope.index.nodes[node].op
        if not any(fnmatchcase(op, glob) for glob in self.ops):
            return False
        return self.predicate is None or self.predicate(scope.index, node) is None


@dataclass(frozen=True)
class OpKindRule:
    """Single nodes that the target takes and whose kind is at most the given one."""

    max_kind: OpKind = OpKind.OUT_FUSABLE
    name: str = ""

    def candidates(self, scope: Scope) -> Proposals:
        taken = [i for i in bits(scope.supported) if scope.kinds[i] <= self.max_kind]
        return _singles(scope, self.name, taken)


@dataclass(frozen=True)
class HostRule:
    """Single opaque nodes (control flow, sequences, text), which are left when the others are fused."""

    name: str = "host"

    def candidates(self, scope: Scope) -> Proposals:
        left = [i for i in bits(scope.supported) if scope.kinds[i] is OpKind.OPAQUE]
        return _singles(scope, self.name, left)


@dataclass(frozen=True)
class CompositeRule:
    """Names the sub-rule's proposals after the library function that computes them."""

    name: str
    rule: Rule

    def candidates(self, scope: Scope) -> Proposals:
        inner = self.rule.candidates(scope)
        return Proposals(distinct(inner.found, self.name), inner.notes)


@dataclass(frozen=True)
class PrimitiveRule:
    """Each of the sub-rule's proposals stands as one partition, so it must be convex."""

    name: str
    rule: Rule

    def candidates(self, scope: Scope) -> Proposals:
        inner = self.rule.candidates(scope)
        whole = [p for p in inner.found if scope.index.is_convex(p.nodes)]
        return Proposals(distinct(whole, self.name), inner.notes)


@dataclass(frozen=True)
class UnionRule:
    """All proposals of all sub-rules, each set of nodes once, under the first rule's name."""

    rules: tuple[Rule, ...]
    name: str = ""

    def candidates(self, scope: Scope) -> Proposals:
        inner = [rule.candidates(scope) for rule in self.rules]
        found = distinct((p for proposals in inner for p in proposals.found), self.name)
        return Proposals(found, tuple(note for proposals in inner for note in proposals.notes))


@dataclass(frozen=True)
class OnlyValidRule:
    """The sub-rule's proposals that are valid under limits on depth, exits and taps."""

    limits: Limits
    rule: Rule
    name: str = ""

    def candidates(self, scope: Scope) -> Proposals:
        inner = self.rule.candidates(scope)
        valid = [p for p in inner.found if not SubGraph(scope.index, p.nodes).violation(self.limits)]
        return Proposals(distinct(valid, self.name), inner.notes)


@dataclass(frozen=True)
class CombineRule:
    """The sub-rule's proposals and everything that the combiners can join of them.

    Rounds join what the round before found until nothing new comes or a bound is hit, which is noted.
    """

    rule: Rule  # gives the parts
    combiners: tuple[Combiner, ...]  # fire on each round in this order
    max_depth: int = 8  # no join has a longer path inside (in nodes)
    max_candidates: int = 5000  # no more proposals than this, the parts included
    name: str = ""

    def candidates(self, scope: Scope) -> Proposals:
        inner = self.rule.candidates(scope)
        pool = ProposalPool(scope.index)
        for part in inner.found:
            pool.add(part)
        too_deep: set[int] = set()
        full = self._join_all(scope, pool, too_deep)
        title = f"combine {self.name}".strip()
        notes = list(inner.notes)
        if too_deep:
            notes.append(f"{title}: {len(too_deep)} joins deeper than {self.max_depth} were left out")
        if full:
            notes.append(f"{title}: stopped at {self.max_candidates} candidates")
        return Proposals(distinct(pool.items, self.name), tuple(notes))

    def _join_all(self, scope: Scope, pool: ProposalPool, too_deep: set[int]) -> bool:
        """Fill the pool; True when it became full."""
        first_new, end = 0, len(pool.items)
        while first_new < end:
            for combiner in self.combiners:
                for joined in combiner.joins(scope, pool, first_new, end):
                    if joined.nodes in pool or joined.nodes in too_deep:
                        continue
                    if self._is_too_deep(scope.index, joined.nodes):
                        too_deep.add(joined.nodes)
                        continue
                    if len(pool.items) >= self.max_candidates:
                        return True
                    pool.add(joined)
            first_new, end = end, len(pool.items)
        return False

    def _is_too_deep(self, index: GraphIndex, nodes: int) -> bool:
        return nodes.bit_count() > self.max_depth and SubGraph(index, nodes).depth > self.max_depth


def _singles(scope: Scope, name: str, nodes: Sequence[int]) -> Proposals:
    found = [Proposal(1 << i, label(name, scope.index.nodes[i].op_type), scope.kinds[i]) for i in nodes]
    return Proposals(tuple(found))

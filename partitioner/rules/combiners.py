"""How smaller proposals are joined to larger ones.

Terms: *upstream* and *downstream* are two disjoint proposals of which the first feeds the second and
not the other way. A `ProposalPool` holds the proposals found so far; a combiner yields joins of which
at least one part is new, so that rounds do not repeat each other.

The combiners of RFC 0062 in terms of ONNX:

* `ByKind(A, B)` joins an upstream of at most kind A with a downstream of at most kind B;
* `JoinAnything` joins any two that touch;
* `VariadicInputs` joins a reader of a list of inputs (Concat, Sum) with one producer for every input at
  once;
* `MultiOutputs` joins a node with several outputs (Split) with one reader for every node that reads
  them;
* `ConstantInputs` joins nodes that compute from constants alone to their reader.

Source: TVM v0.18 `src/relay/collage/combiner_rule.h`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.op_kind import OpKind
from collage.partitioner.rules.proposal import Proposal, Scope

MAX_CHOICES = 256  # how many ways of joining all inputs (or outputs) of one proposal are followed
_VARIADIC = frozenset(
    {"Concat", "Einsum", "FeatureVectorizer", "Max", "Mean", "Min", "QLinearConcat", "Sum"}
)


class ProposalPool:
    """Proposals found so far, each set of nodes once, indexed by node."""

    def __init__(self, index: GraphIndex) -> None:
        self.index = index
        self.items: list[Proposal] = []
        self._around: list[tuple[int, int, int, int]] = []
        self._known: set[int] = set()
        self._holding: list[list[int]] = [[] for _ in index.nodes]

    def __contains__(self, nodes: int) -> bool:
        return nodes in self._known

    def add(self, proposal: Proposal) -> None:
        """Add a proposal that is not in the pool yet."""
        before = after = ancestors = descendants = 0
        for i in bits(proposal.nodes):
            self._holding[i].append(len(self.items))
            before |= self.index.predecessors[i]
            after |= self.index.successors[i]
            ancestors |= self.index.ancestors[i]
            descendants |= self.index.descendants[i]
        self.items.append(proposal)
        self._known.add(proposal.nodes)
        outside = ~proposal.nodes
        self._around.append((before & outside, after & outside, ancestors, descendants))

    def before(self, at: int) -> int:
        """Nodes outside a proposal that feed it (bitset)."""
        return self._around[at][0]

    def after(self, at: int) -> int:
        """Nodes outside a proposal that it feeds (bitset)."""
        return self._around[at][1]

    def holding(self, nodes: int, below: int) -> list[int]:
        """Positions under `below` of the proposals that hold some of the nodes, ascending."""
        found = {at for i in bits(nodes) for at in self._holding[i] if at < below}
        return sorted(found)

    def join(self, parts: Sequence[int]) -> Proposal | None:
        """The disjoint, convex union of proposals, or None where there is none or it is known."""
        nodes = ancestors = descendants = 0
        for at in parts:
            if self.items[at].nodes & nodes:
                return None
            nodes |= self.items[at].nodes
            ancestors |= self._around[at][2]
            descendants |= self._around[at][3]
        if nodes in self._known or ancestors & descendants & ~nodes:
            return None
        rule = "+".join(dict.fromkeys(self.items[at].rule for at in parts))
        return Proposal(nodes, rule, max(self.items[at].kind for at in parts))


class Combiner(Protocol):
    """Looks through a pool for joins."""

    @property
    def name(self) -> str:
        """As in rule files and texts, e.g. `out_fusable->broadcast`."""
        ...

    def joins(self, scope: Scope, pool: ProposalPool, first_new: int, end: int) -> Iterator[Proposal]:
        """Joins of proposals at positions under `end`, one of them at `first_new` or after it."""
        ...


@dataclass(frozen=True)
class ByKind:
    """Joins an upstream and a downstream whose kinds are at most the given ones."""

    upstream: OpKind
    downstream: OpKind

    @property
    def name(self) -> str:
        return f"{self.upstream.name.lower()}->{self.downstream.name.lower()}"

    def joins(self, scope: Scope, pool: ProposalPool, first_new: int, end: int) -> Iterator[Proposal]:
        for up, down in _touching(pool, first_new, end):
            if pool.items[up].kind <= self.upstream and pool.items[down].kind <= self.downstream:
                joined = pool.join((up, down))
                if joined is not None:
                    yield joined


@dataclass(frozen=True)
class JoinAnything:
    """Joins any two proposals that touch."""

    name: str = "anything"

    def joins(self, scope: Scope, pool: ProposalPool, first_new: int, end: int) -> Iterator[Proposal]:
        for pair in _touching(pool, first_new, end):
            joined = pool.join(pair)
            if joined is not None:
                yield joined


@dataclass(frozen=True)
class VariadicInputs:
    """Joins a reader of a list of inputs with one producer for each of them at once."""

    max_kind: OpKind = OpKind.INJECTIVE
    name: str = "variadic_inputs"

    def joins(self, scope: Scope, pool: ProposalPool, first_new: int, end: int) -> Iterator[Proposal]:
        for at in range(end):
            item = pool.items[at]
            lists = [i for i in bits(item.nodes) if scope.index.nodes[i].op_type in _VARIADIC]
            for i in lists if item.kind <= self.max_kind else []:
                feeding = bits(scope.index.predecessors[i] & ~item.nodes)
                yield from _all_at_once(pool, at, feeding, self.max_kind, first_new, end, up=True)


@dataclass(frozen=True)
class MultiOutputs:
    """Joins a node with several outputs with one reader for every node that reads them at once."""

    max_kind: OpKind = OpKind.INJECTIVE
    name: str = "multi_outputs"

    def joins(self, scope: Scope, pool: ProposalPool, first_new: int, end: int) -> Iterator[Proposal]:
        for at in range(end):
            item = pool.items[at]
            many = [i for i in bits(item.nodes) if len(scope.index.nodes[i].outputs) > 1]
            for i in many if item.kind <= self.max_kind else []:
                reading = bits(scope.index.successors[i] & ~item.nodes)
                yield from _all_at_once(pool, at, reading, self.max_kind, first_new, end, up=False)


@dataclass(frozen=True)
class ConstantInputs:
    """Joins the nodes that compute from constants alone, and that the target takes, to their reader."""

    name: str = "constant_inputs"

    def joins(self, scope: Scope, pool: ProposalPool, first_new: int, end: int) -> Iterator[Proposal]:
        constant = _constant_nodes(scope) & scope.supported
        for at in range(first_new, end):
            item = pool.items[at]
            nodes = item.nodes | scope.index.ancestors_of(item.nodes) & constant
            if nodes != item.nodes and nodes not in pool and scope.index.is_convex(nodes):
                yield scope.proposal(nodes, item.rule)


def _touching(pool: ProposalPool, first_new: int, end: int) -> Iterator[tuple[int, int]]:
    """Pairs (upstream, downstream) of which one is new."""
    for new in range(first_new, end):
        nodes = pool.items[new].nodes
        for down in pool.holding(pool.after(new), end):
            if not (pool.items[down].nodes & nodes or pool.after(down) & nodes):
                yield new, down
        for up in pool.holding(pool.before(new), min(end, first_new)):
            if not (pool.items[up].nodes & nodes or pool.before(up) & nodes):
                yield up, new


def _all_at_once(
    pool: ProposalPool, at: int, others: list[int], kind: OpKind, first_new: int, end: int, *, up: bool
) -> Iterator[Proposal]:
    """Joins of one proposal with one more for each of the other nodes, in every choice."""
    if len(others) < 2:
        return
    item = pool.items[at]
    choices = []
    for node in others:
        held = pool.holding(1 << node, end)
        choices.append(
            [
                other
                for other in held
                if pool.items[other].kind <= kind
                and not pool.items[other].nodes & item.nodes
                and (pool.after(other) if up else pool.before(other)) & item.nodes
            ]
        )
    for choice in itertools.islice(itertools.product(*choices), MAX_CHOICES):
        parts = dict.fromkeys((at, *choice))
        if max(parts) >= first_new:
            joined = pool.join(tuple(parts))
            if joined is not None:
                yield joined


def _constant_nodes(scope: Scope) -> int:
    """Nodes that depend on no graph input and always compute the same (bitset)."""
    index = scope.index
    found = 0
    for node in index.nodes:
        made = [index.producer[name] for name in node.used if name in index.producer]
        given = any(name in index.inputs for name in node.used)
        if not given and scope.kinds[node.index] < OpKind.OPAQUE and all(found >> i & 1 for i in made):
            found |= 1 << node.index
    return found

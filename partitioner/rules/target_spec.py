"""What a target offers to the search: its word on nodes, its patterns, its style, its rule.

Styles (a backend states one): a *library* computes single operators and named patterns as they are; a
*fusion* target also joins neighbors by the kinds of their operators; a *graph* target compiles
whatever it is given, and gains most from large regions. Every style is offered single nodes and
`RegionRule`'s regions too, because the search starts from single nodes and maximal regions: a runtime
of any style can run a sequence of what it takes. A target with a rule of its own is offered what
that rule proposes and nothing else.

Source: RFC 0062, phase 1 (rules chosen by inspection of the target).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from collage.partitioner.candidate import Candidate
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.sub_graph import Limits
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.rules.pattern import IndexedModel, Pattern
from collage.partitioner.rules.proposal import Rule, Scope
from collage.partitioner.rules.regions import RegionRule
from collage.partitioner.rules.rules import (
    FUSE_OPS,
    CombineRule,
    OnlyValidRule,
    OpPredicateRule,
    PatternRule,
    UnionRule,
)
from collage.partitioner.target import Target

Style = Literal["library", "fusion", "graph"]


@dataclass(frozen=True)
class TargetSpec:
    """A target with what the partitioner needs to know of it.

    Args:
        target: the backend with its options.
        style: which default rule it has.
        supports: None when the target takes a node, else the reason of its refusal.
        patterns: what it computes as one kernel.
        memory_domain: where its inputs and outputs live, e.g. `host` or `cuda:0`.
        rule: replaces the default rule of the style.
        refuse_region: None when taken nodes (bitset) make sense as one partition, else why not.
    """

    target: Target
    style: Style
    supports: Callable[[GraphIndex, int], str | None]
    patterns: tuple[Pattern, ...] = ()
    memory_domain: str = "host"
    rule: Rule | None = None
    refuse_region: Callable[[GraphIndex, int], str | None] = lambda index, nodes: None


def rule_for(spec: TargetSpec) -> Rule:
    """The target's own rule, or the default one of its style."""
    if spec.rule is not None:
        return spec.rule
    atoms = OpPredicateRule(name="node")
    patterns = tuple(PatternRule(pattern) for pattern in spec.patterns)
    rules: list[Rule] = [atoms]
    if patterns:
        # A match whose inner value is needed elsewhere would lose what fusing gains.
        no_taps = Limits(allow_taps=False)
        rules.append(OnlyValidRule(no_taps, UnionRule(patterns), name="pattern"))
    if spec.style == "fusion":
        parts = UnionRule((atoms, *patterns))
        one_exit = Limits(max_exits=1, allow_taps=False)
        rules.append(OnlyValidRule(one_exit, CombineRule(parts, FUSE_OPS), name="fused"))
    rules.append(RegionRule())
    return UnionRule(tuple(rules))


def enumerate_candidates(model: IndexedModel, specs: Sequence[TargetSpec]) -> CandidateSet:
    """Every candidate that the targets' rules propose for a model.

    Args:
        model: the model with its index.
        specs: the targets; their order decides nothing but the order of the candidates.

    Returns:
        The candidates without duplicates, and for each node and target that has none the reason.
    """
    found: list[Candidate] = []
    refusals: dict[tuple[int, Target], str] = {}
    notes: list[str] = []
    for spec in specs:
        scope = Scope(model, spec.supports)
        proposals = rule_for(spec).candidates(scope)
        sensible = [p for p in proposals.found if spec.refuse_region(model.index, p.nodes) is None]
        found += [Candidate(p.nodes, spec.target, p.rule) for p in sensible]
        notes += [f"{spec.target}: {note}" for note in proposals.notes]
        covered = 0
        for proposal in sensible:
            covered |= proposal.nodes
        for i, refusal in enumerate(scope.refusals):
            if not covered >> i & 1:
                refusal = refusal or spec.refuse_region(model.index, 1 << i)
                refusals[i, spec.target] = refusal or "the target's rules propose nothing for it"
    return CandidateSet.build(model.index, found, refusals, notes)

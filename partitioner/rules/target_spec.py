"""What a target offers to the search: which nodes it takes, its patterns, its style, its rule.

A *library* computes single operators and named patterns; a *fusion* target also joins neighbors by the
kinds of their operators; a *graph* target compiles whole regions. Every style is offered single nodes
and `RegionRule`'s regions, where the search starts. A target with a rule of its own is offered what
that rule proposes.

Source: RFC 0062, phase 1 (rules chosen by inspection of the target).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from collage.partitioner.candidate import Candidate
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.sub_graph import Limits, SubGraph
from collage.partitioner.lazy import ir
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
from collage.partitioner.target import HOST_MEMORY, Target

Style = Literal["library", "fusion", "graph"]


@dataclass(frozen=True)
class TargetSpec:
    """A target with what the partitioner needs to know of it."""

    target: Target  # the backend with its options
    style: Style  # which default rule it has
    # None when the target takes a node, else the reason of its refusal
    supports: Callable[[GraphIndex, int], str | None]
    patterns: tuple[Pattern, ...] = ()  # what it computes as one kernel
    memory_domain: str = HOST_MEMORY  # where its inputs and outputs live, e.g. `host` or `cuda:0`.
    rule: Rule | None = None  # replaces the default rule of the style
    # None when taken nodes (bitset) make sense as one partition, else why not
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


def enumerate_candidates(
    model: IndexedModel, specs: Sequence[TargetSpec], known: CandidateSet | None = None
) -> CandidateSet:
    """Every candidate of the targets' rules, and a reason for each node and target without one.

    Args:
        model: whose nodes they cover.
        specs: the targets.
        known: candidates of other targets, which come first.
    """
    found = list(known.candidates) if known else []
    refusals = dict(known.refusals) if known else {}
    notes = list(known.notes) if known else []
    made = [model.index.values[name] for name in model.index.producer]
    kept = {value.name for value in made if value.is_packed} - set(model.index.outputs)
    inner = (value for node in model.ir.graph for value in node.outputs)
    kept |= {v.name or "" for v in inner if isinstance(v.type, ir.SequenceType | ir.OptionalType)}
    for spec in specs:
        scope = Scope(model, spec.supports)
        proposals = rule_for(spec).candidates(scope)
        sensible = [p for p in proposals.found if _refusal(model.index, p.nodes, spec, kept) is None]
        found += [Candidate(p.nodes, spec.target, p.rule) for p in sensible]
        notes += [f"{spec.target}: {note}" for note in proposals.notes]
        covered = 0
        for proposal in sensible:
            covered |= proposal.nodes
        for i, refusal in enumerate(scope.refusals):
            if not covered >> i & 1:
                refusal = refusal or _refusal(model.index, 1 << i, spec, kept)
                refusals[i, spec.target] = refusal or "the target's rules propose nothing for it"
    return CandidateSet.build(model.index, found, refusals, notes)


def _refusal(index: GraphIndex, nodes: int, spec: TargetSpec, kept: set[str]) -> str | None:
    """Why taken nodes are not offered as one partition.

    Args:
        kept: values that runtimes cannot hand over, such as sequences, so that none may cross its border.
    """
    refusal = spec.refuse_region(index, nodes)
    if refusal or not kept:
        return refusal
    sub_graph = SubGraph(index, nodes)
    crossing = next((name for name in (*sub_graph.inputs, *sub_graph.outputs) if name in kept), None)
    if crossing is None:
        return None
    dtype = index.values[crossing].dtype
    what = "no tensor" if dtype == "unknown" else dtype
    return f"{crossing!r} is {what}, which runtimes cannot hand over"

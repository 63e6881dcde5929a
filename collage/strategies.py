"""The plans of every strategy but `optimal`: they are made, not searched, and measured like any other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from collage.refine import Entry
from partitioner.candidate import Candidate, Plan, bits
from partitioner.candidate_set import CandidateSet
from partitioner.constraints import Constraints
from partitioner.errors import NoPlanError
from partitioner.graph_index import GraphIndex
from partitioner.model import Model
from partitioner.plan_check import PlanError, execution_order
from partitioner.plan_text import decode
from partitioner.regions import turns
from partitioner.search import search
from partitioner.target import Target
from partitioner.target_spec import TargetSpec


def single_plan(model: Model, target: Target) -> Plan:
    """The whole model on one target."""
    return Plan((Candidate(model.index.all_nodes, target, "whole"),))


def given_plan(model: Model, plan: Mapping[str, Any]) -> Entry:
    """A plan as JSON, applied to the model again.

    Raises:
        BadInputError: it is damaged, or not for this model.
    """
    return Entry(decode(model, json.dumps(plan)).plan, "given plan")


def pinned_plan(model: Model, candidates: CandidateSet, constraints: Constraints) -> Entry:
    """What pins and bans say, in as few partitions as they allow; nothing is measured for it.

    Raises:
        NoPlanError: the pins leave a node to several targets, or to none that takes it.
    """
    targets = sorted({candidate.target for candidate in candidates.candidates})
    forbidden = constraints.forbidden_nodes(model.index, targets)
    for node in model.index.nodes:
        left = [t for t in targets if not forbidden[t] >> node.index & 1]
        if len(left) > 1:
            raise NoPlanError(
                f"strategy manual needs a pin for every node, and {node.name!r} ({node.op}) may go to "
                f"{', '.join(map(str, left))}; add --pin '*={left[0]}' for the rest, say"
            )
    free: Sequence[float] = [0.0] * len(candidates.candidates)
    solution = search(
        model.index, candidates.candidates, free, constraints=constraints, refusals=candidates.refusals
    )
    return Entry(solution.plans[0].plan, "pinned plan")


def check_covered(index: GraphIndex, candidates: CandidateSet, targets: Sequence[Target]) -> None:
    """Make sure that some target takes every node.

    Raises:
        NoPlanError: names the first node that none takes, with each target's reason.
    """
    for node, holders in zip(index.nodes, candidates.by_node, strict=True):
        if not holders:
            reasons = "; ".join(
                f"{t}: {candidates.refusals.get((node.index, t), 'proposes nothing for it')}"
                for t in targets
            )
            raise NoPlanError(
                f"no target takes node {node.name!r} ({node.op}): {reasons}; add a target"
            )


def greedy_plan(index: GraphIndex, specs: Sequence[TargetSpec], candidates: CandidateSet) -> Plan:
    """Each target in turn takes the largest regions it can of what is left, as runtimes' partitioners do.

    Raises:
        NoPlanError: some node is refused by every target, or the regions wait for each other.
    """
    left = index.all_nodes
    taken: list[Candidate] = []
    for spec in specs:
        supported = left
        for i in bits(left):
            if (i, spec.target) in candidates.refusals:
                supported &= ~(1 << i)
        for region in turns(index, supported):
            taken.append(Candidate(region, spec.target, "greedy"))
            left &= ~region
    if left:
        node = index.nodes[bits(left)[0]]
        raise NoPlanError(f"greedy leaves node {node.name!r} ({node.op}) to nobody")
    try:
        order = execution_order(index, [candidate.nodes for candidate in taken])
    except PlanError as error:
        raise NoPlanError(f"greedy: {error}") from None
    return Plan(tuple(taken[i] for i in order))

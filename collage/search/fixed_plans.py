"""The plans of every strategy but `optimal`: they are made, not searched, and measured like any other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from collage.backends.registry import backend_of, check_options, installed, resolve
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.emit.plan_json import decode_plan
from collage.partitioner.errors import BadInputError, NoPlanError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.plan_check import PlanError, execution_order, quotient
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.rules.target_spec import TargetSpec
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.search.search import Searcher
from collage.partitioner.target import Target


def parse_targets(texts: Sequence[str]) -> tuple[Target, ...]:
    """Targets, each once, in the order given; without any, all runtimes that are installed.

    Raises:
        TargetError: one is misspelled.
        BadInputError: none is given, and no runtime is installed.
    """
    texts = texts or installed()
    if not texts:
        raise BadInputError("no runtime is installed; install one: pip install onnxruntime")
    return tuple(dict.fromkeys(Target.parse(text) for text in texts))


def single_plan(model: Model, target: Target) -> Plan:
    """The whole model on one target."""
    return Plan((Candidate(model.index.all_nodes, target, "whole"),))


def given_plan(model: Model, plan: Mapping[str, Any]) -> Plan:
    """A plan as JSON, applied to the model again.

    Raises:
        BadInputError: it is damaged, or not for this model.
    """
    return decode_plan(model, json.dumps(plan)).plan


def pinned_plan(model: Model, candidates: CandidateSet, constraints: Constraints) -> Plan:
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
    searcher = Searcher(model.index, candidates.candidates, candidates.refusals)
    solution = searcher.solve(free, constraints=constraints)
    return solution.plans[0].plan


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


def respects(
    index: GraphIndex, constraints: Constraints, specs: Sequence[TargetSpec], plan: Plan
) -> bool:
    """True when a plan keeps pins, bans and limits; accuracy is measured, so not here."""
    domains = {spec.target: spec.memory_domain for spec in specs}
    devices = {domains[t] if t in domains else check_options(t).memory_domain(t) for t in plan.targets}
    most, devices_allowed = constraints.max_partitions, constraints.max_devices
    return (
        all(replace(constraints, budgets=()).allowed(index, plan.partitions))
        and (most is None or len(plan.partitions) <= most)
        and (devices_allowed is None or len(devices) <= devices_allowed)
    )


def joined(index: GraphIndex, plan: Plan) -> Plan:
    """A plan in which partitions of one target that feed each other are one, as far as it can be run then."""
    parts = list(plan.partitions)
    for maker, reader in _alike(index, parts):
        pair = parts[maker], parts[reader]
        nodes = sum(part.nodes for part in pair)
        others = sum(_unmixed(part)[1] for part in pair)
        target, _ = _unmixed(pair[0])
        whole = Candidate(nodes, backend_of(target).mix(target, nodes, others), "joined")
        rest = [part for part in parts if part not in pair]
        try:
            order = execution_order(index, [part.nodes for part in (whole, *rest)])
        except PlanError:
            continue
        return joined(index, Plan(tuple((whole, *rest)[i] for i in order), plan.lanes))
    return plan


def _alike(index: GraphIndex, parts: Sequence[Candidate]) -> list[tuple[int, int]]:
    """Makers and readers that are on one target."""
    readers = quotient(index, [part.nodes for part in parts])
    pairs = [(maker, reader) for maker, found in enumerate(readers) for reader in sorted(found)]
    targets = [_unmixed(part)[0] for part in parts]
    return [(maker, reader) for maker, reader in pairs if targets[maker] == targets[reader]]


def _unmixed(part: Candidate) -> tuple[Target, int]:
    return backend_of(part.target).unmix(part.target, part.nodes)


def sensible(index: GraphIndex, plan: Plan) -> bool:
    """True when no target refuses a partition of a plan as a whole, as it does those that compute nothing."""
    return all(
        resolve(p.target).refuse_region(index, p.nodes, p.target) is None for p in plan.partitions
    )

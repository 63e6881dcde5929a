"""Why there is no plan, in messages that say what to change."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from collage.partitioner.candidate import bits
from collage.partitioner.search.candidate_arrays import CandidateArrays
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.search.milp import Floats, Ints
from collage.partitioner.target import Target

Refusals = Mapping[tuple[int, Target], str]

_SHOWN = 3


def explain(
    arrays: CandidateArrays,
    active: Ints,
    cost_us: Floats,
    constraints: Constraints,
    refusals: Refusals,
    infeasible: Mapping[int, str],
) -> str:
    """Name the first nodes that nothing covers, with each target's reason.

    Args:
        cost_us: per candidate; infinite where it cannot be used.
        constraints: what took candidates away.
        refusals: why a target has no candidate for a node.
        infeasible: per candidate why it cannot be used.
    """
    left = arrays.uncovered(active)
    lines = []
    for node in left[:_SHOWN]:
        info = arrays.index.nodes[node]
        reasons = [
            f"{target}: {_reason(arrays, node, target, cost_us, constraints, refusals, infeasible)}"
            for target in _targets(arrays, node, refusals)
        ]
        said = "; ".join(reasons) or "no target was given"
        lines.append(f"node {info.name!r} ({info.op}) is taken by no target ({said})")
    more = f", and {len(left) - _SHOWN} more nodes" if len(left) > _SHOWN else ""
    return f"{'; '.join(lines)}{more}; add a target that takes them, such as onnxruntime"


def explain_misfit(constraints: Constraints) -> str:
    """The message where every node is covered, yet nothing fits together."""
    limits = [
        f"{name}={value}"
        for name, value in (
            ("max_partitions", constraints.max_partitions),
            ("max_devices", constraints.max_devices),
        )
        if value is not None
    ]
    if constraints.min_partition_nodes > 1:
        limits.append(f"min_partition_nodes={constraints.min_partition_nodes}")
    limits += [f"{budget.name} <= {budget.limit:g}" for budget in constraints.budgets]
    limits += [f"pin '{rule}'" for rule in constraints.pins]
    limits += [f"ban '{rule}'" for rule in constraints.bans]
    if not limits:
        return "the candidates cover every node but do not fit together into a plan; offer single nodes too"
    return f"no plan keeps to {', '.join(limits)} all at once; relax one of them"


def _targets(arrays: CandidateArrays, node: int, refusals: Refusals) -> list[Target]:
    refusing = [target for at, target in refusals if at == node]
    return list(dict.fromkeys((*arrays.targets, *refusing)))


def _reason(
    arrays: CandidateArrays,
    node: int,
    target: Target,
    cost_us: Floats,
    constraints: Constraints,
    refusals: Refusals,
    infeasible: Mapping[int, str],
) -> str:
    if (node, target) in refusals:
        return refusals[node, target]
    kept_away = constraints.kept_away_by(arrays.index, node, target)
    if kept_away is not None:
        return f"kept away by {kept_away}"
    here = np.flatnonzero(arrays.holds(node)).tolist()
    holding = [c for c in here if arrays.candidates[c].target == target]
    if not holding:
        return "it has no candidate for it"
    holding.sort(key=lambda c: arrays.candidates[c].nodes.bit_count())
    able = [c for c in holding if np.isfinite(cost_us[c])]
    if not able:
        why = infeasible.get(holding[0], "no reason given")
        return f"none of its {len(holding)} candidates can run (the smallest: {why})"
    reasons = dict.fromkeys(_kept_out(arrays, c, constraints) for c in able)
    cannot = f"; {len(holding) - len(able)} others cannot run" if len(able) < len(holding) else ""
    return " or ".join(list(reasons)[:_SHOWN]) + cannot


def _kept_out(arrays: CandidateArrays, candidate: int, constraints: Constraints) -> str:
    """What takes a feasible candidate away."""
    chosen = arrays.candidates[candidate]
    for node in bits(chosen.nodes):
        rule = constraints.kept_away_by(arrays.index, node, chosen.target)
        if rule is not None:
            return (
                f"it takes it only together with {arrays.index.nodes[node].name!r}, kept away by {rule}"
            )
    least = constraints.min_partition_nodes
    if chosen.nodes.bit_count() < least and chosen.nodes != arrays.index.all_nodes:
        return f"it has no partition of at least {least} nodes there"
    over = [b.name for b in constraints.budgets if b.amounts[candidate] > b.limit]
    return f"alone it exceeds the {' and the '.join(over)} budget"

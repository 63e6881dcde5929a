"""Why a partition is where it is: what every other target would cost there, or why it is refused.

Invariant: a number that was measured and one that was only estimated are never said alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collage.costs import CostSource
from collage.estimates import Estimates
from partitioner.candidate import Candidate, bits
from partitioner.candidate_set import CandidateSet
from partitioner.cost import Infeasible, Measured
from partitioner.graph_index import GraphIndex
from partitioner.target import Target

_SHOWN_REFUSALS = 3


@dataclass(frozen=True)
class Witness:
    """What is known when a plan has been chosen.

    Args:
        index: the graph.
        targets: all that were given.
        candidates: all that could be used.
        costs: what was measured.
        estimates: optimistic bounds of the rest.
    """

    index: GraphIndex
    targets: Sequence[Target]
    candidates: CandidateSet
    costs: CostSource
    estimates: Estimates


def alternatives(witness: Witness, partition: Candidate) -> list[dict[str, Any]]:
    """For every other target what the partition would cost there: measured, estimated or refused."""
    offered = {(c.nodes, c.target) for c in witness.candidates.candidates}
    found = []
    for target in witness.targets:
        if target == partition.target:
            continue
        said: dict[str, Any] = {"target": str(target)}
        refused = [i for i in bits(partition.nodes) if (i, target) in witness.candidates.refusals]
        if refused:
            said["refused"] = [
                {
                    "node": witness.index.nodes[i].name,
                    "op": witness.index.nodes[i].op,
                    "reason": witness.candidates.refusals[i, target],
                }
                for i in refused[:_SHOWN_REFUSALS]
            ]
            said["refused_nodes"] = len(refused)
        else:
            cost = witness.costs.cost(Candidate(partition.nodes, target))
            if isinstance(cost, Measured):
                said["latency_us"] = cost.latency_us
            elif isinstance(cost, Infeasible):
                said["infeasible"] = cost.reason
            else:
                said["at_least_us"] = witness.estimates.bound_us(partition.nodes, target)
                said["offered"] = (partition.nodes, target) in offered
        found.append(said)
    return found


def reasons(latency_us: float | None, others: Sequence[dict[str, Any]]) -> list[str]:
    """The same in sentences, the runner-up first."""
    lines = []
    measured = sorted((o for o in others if "latency_us" in o), key=lambda o: float(o["latency_us"]))
    for other in measured:
        moved = (
            ""
            if latency_us is None
            else f", {(other['latency_us'] - latency_us) / 1e3:+.3f} ms if it moved"
        )
        lines.append(f"{other['target']}: measured {other['latency_us'] / 1e3:.3f} ms{moved}")
    for other in others:
        if "infeasible" in other:
            lines.append(f"{other['target']}: infeasible, {other['infeasible']}")
        elif "refused" in other:
            first = other["refused"][0]
            more = f" and {other['refused_nodes'] - 1} more nodes" if other["refused_nodes"] > 1 else ""
            lines.append(
                f"{other['target']}: refuses {first['node']} ({first['op']}){more}: {first['reason']}"
            )
        elif "at_least_us" in other:
            lines.append(
                f"{other['target']}: never measured here; its profile promises no better than "
                f"{other['at_least_us'] / 1e3:.3f} ms"
            )
    return lines or ["no other target was given"]


def whole_model_failures(witness: Witness) -> dict[Target, str]:
    """Why targets cannot run the whole model, for those that cannot."""
    everything = witness.index.all_nodes
    offered = {c.target for c in witness.candidates.candidates if c.nodes == everything}
    failures = {}
    for target in witness.targets:
        cost = witness.costs.cost(Candidate(everything, target))
        if isinstance(cost, Infeasible):
            failures[target] = cost.reason
        elif target not in offered:
            failures[target] = _first_refusal(witness, target)
    return failures


def _first_refusal(witness: Witness, target: Target) -> str:
    refusals = witness.candidates.refusals
    refused = [node for node, other in refusals if other == target]
    if not refused:
        return "its rules do not propose the whole model"
    node = witness.index.nodes[min(refused)]
    count = f"{len(refused)} of {len(witness.index.nodes)} nodes"
    return f"it refuses {count}, first {node.name} ({node.op}): {refusals[node.index, target]}"

"""What every other target would cost in a partition's place, or why it is refused.

Invariant: measured and estimated numbers are never worded alike.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from collage.costs.estimates import Estimates
from collage.costs.measured_costs import MeasuredCosts
from collage.partitioner.candidate import Candidate, Plan, bits
from collage.partitioner.cost import Infeasible, Measured, Unknown
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.search.transition import Transitions
from collage.partitioner.target import Target

_SHOWN_REFUSALS = 3


@dataclass(frozen=True)
class KnownCosts:
    """What is known when a plan has been chosen."""

    index: GraphIndex
    targets: Sequence[Target]  # all that the search had
    candidates: CandidateSet  # all that could be used
    costs: MeasuredCosts  # what was measured
    estimates: Estimates  # optimistic bounds of the rest
    transitions: Transitions = field(default_factory=Transitions)
    # whether plans were searched; else most candidates were never looked at, and are not now
    searched: bool = True


@dataclass(frozen=True)
class PlacedPartition:
    """A partition at its place in a plan."""

    plan: Plan
    position: int
    # what it took inside the running plan; None where that was not seen
    latency_us: float | None = None
    # by the (node set, target) pairs of other timed plans, by how much they took longer
    timed: Mapping[frozenset[tuple[int, Target]], float] = field(default_factory=dict)

    @property
    def partition(self) -> Candidate:
        return self.plan.partitions[self.position]


def alternatives(known: KnownCosts, place: PlacedPartition) -> list[dict[str, Any]]:
    """For every other target what a partition would cost there: measured, estimated or refused.

    `moved_us` is by how much the whole plan would change with this partition there, borders included;
    beside an estimate it is a lower bound. Where that plan was timed, `moved_measured_us` is what came
    out.
    """
    partition = place.partition
    offered = {(c.nodes, c.target) for c in known.candidates.candidates}
    found = []
    for target in known.targets:
        if target == partition.target:
            continue
        said: dict[str, Any] = {"target": str(target)}
        refused = [i for i in bits(partition.nodes) if (i, target) in known.candidates.refusals]
        if refused:
            said["refused"] = [
                {
                    "node": known.index.nodes[i].name,
                    "op": known.index.nodes[i].op,
                    "reason": known.candidates.refusals[i, target],
                }
                for i in refused[:_SHOWN_REFUSALS]
            ]
            said["refused_nodes"] = len(refused)
        else:
            cost = known.costs.cost(Candidate(partition.nodes, target))
            if isinstance(cost, Measured):
                said["latency_us"] = cost.latency_us
                said |= _moved(known, place, target, cost.latency_us)
            elif isinstance(cost, Infeasible):
                said["infeasible"] = cost.reason
            else:
                bound_us = known.estimates.bound_us(partition.nodes, target)
                said["at_least_us"] = bound_us
                said["offered"] = (partition.nodes, target) in offered
                said |= _moved(known, place, target, bound_us)
        found.append(said)
    return found


def _moved(
    known: KnownCosts, place: PlacedPartition, target: Target, there_us: float
) -> dict[str, float]:
    moved = list(place.plan.partitions)
    moved[place.position] = replace(place.partition, target=target)
    said = {}
    here_us = alone_us(known, place.partition)
    if here_us is None:
        here_us = place.latency_us
    if here_us is not None:
        borders = known.transitions.plan_cost
        change_us = borders(known.index, moved) - borders(known.index, place.plan.partitions)
        said["moved_us"] = there_us - here_us + change_us
    measured_us = place.timed.get(frozenset((p.nodes, p.target) for p in moved))
    if measured_us is not None:
        said["moved_measured_us"] = measured_us
    return said


def alone_us(known: KnownCosts, partition: Candidate) -> float | None:
    """What a partition took when it was measured alone; None where it was not."""
    cost = known.costs.cost(Candidate(partition.nodes, partition.target))
    return cost.latency_us if isinstance(cost, Measured) else None


def runner_up(others: Sequence[dict[str, Any]]) -> str | None:
    """The target that would cost the least instead, of those that were measured there."""
    measured = [o for o in others if "latency_us" in o]
    best = min(measured, key=lambda o: float(o.get("moved_us", o["latency_us"])), default=None)
    return None if best is None else str(best["target"])


def reasons(
    place: PlacedPartition, own_us: float | None, others: Sequence[dict[str, Any]]
) -> list[str]:
    """The alternatives in sentences: this target, the runner-up, then the rest.

    Args:
        place: the partition.
        own_us: what it took alone.
        others: its alternatives.
    """
    lines = []
    own = [f"{_ms(own_us)} alone"] if own_us is not None else []
    own += [f"{_ms(place.latency_us)} inside the plan"] if place.latency_us is not None else []
    if own:
        lines.append(f"{place.partition.target}: chosen; it takes {', '.join(own)}")
    measured = [o for o in others if "latency_us" in o]
    for other in sorted(measured, key=lambda o: float(o.get("moved_us", o["latency_us"]))):
        said = f"{other['target']}: measured {_ms(other['latency_us'])} alone"
        if "moved_measured_us" in other:
            said += f"; moved there, the whole took {_change(other['moved_measured_us'])}, as timed"
        elif "moved_us" in other:
            said += f"; moved there, the whole is reckoned at {_change(other['moved_us'])}"
        lines.append(said)
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
            least = f"; moved there, the whole is reckoned at no less than {_change(other['moved_us'])}"
            lines.append(
                f"{other['target']}: never measured here; estimates promise no better than "
                f"{_ms(other['at_least_us'])}" + (least if "moved_us" in other else "")
            )
    return lines if others else [*lines, "no other target was given"]


def _ms(us: float) -> str:
    return f"{us / 1e3:.3f} ms"


def _change(us: float) -> str:
    return f"{us / 1e3:+.3f} ms"


def refused_operators(known: KnownCosts) -> list[dict[str, Any]]:
    """What each target refused: by operator and reason, how many nodes, the first one's name."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for (node, target), reason in sorted(known.candidates.refusals.items()):
        info = known.index.nodes[node]
        # A reason may name the node's own values; what is left is the same for all of them.
        plain = re.sub(r"'[^']*'", "…", reason)
        found.setdefault((str(target), info.op, plain), []).append(info.name)
    return [
        {"target": target, "op": op, "reason": reason, "nodes": len(names), "first": names[0]}
        for (target, op, reason), names in found.items()
    ]


def never_measured(known: KnownCosts) -> list[dict[str, Any]]:
    """Per target how many of its candidates were never measured, and the least that one may take.

    Where nothing was searched the least is None: to estimate each of thousands would take longer than all else.
    """
    unknown: dict[Target, list[float]] = {target: [] for target in known.targets}
    for candidate in known.candidates.candidates:
        if not known.searched and not known.costs.has_met(candidate):
            unknown[candidate.target].append(math.inf)
        elif isinstance(known.costs.cost(candidate), Unknown):
            bound_us = known.estimates.bound_us(candidate.nodes, candidate.target)
            unknown[candidate.target].append(bound_us)
    return [
        {
            "target": str(target),
            "candidates": sum(c.target == target for c in known.candidates.candidates),
            "never_measured": len(bounds),
            "at_least_us": min(bounds, default=None) if known.searched else None,
        }
        for target, bounds in unknown.items()
    ]


def whole_model_failures(known: KnownCosts) -> dict[Target, str]:
    """Why targets cannot run the whole model, for those that cannot."""
    everything = known.index.all_nodes
    offered = {c.target for c in known.candidates.candidates if c.nodes == everything}
    failures = {}
    for target in known.targets:
        cost = known.costs.cost(Candidate(everything, target))
        if isinstance(cost, Infeasible):
            failures[target] = cost.reason
        elif target not in offered:
            failures[target] = _first_refusal(known, target)
    return failures


def _first_refusal(known: KnownCosts, target: Target) -> str:
    refusals = known.candidates.refusals
    refused = [node for node, other in refusals if other == target]
    if not refused:
        return "its rules do not propose the whole model"
    node = known.index.nodes[min(refused)]
    count = f"{len(refused)} of {len(known.index.nodes)} nodes"
    return f"it refuses {count}, first {node.name} ({node.op}): {refusals[node.index, target]}"

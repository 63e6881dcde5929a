"""From the steps of a runtime's profile back to the nodes of the model.

A runtime fuses: one step computes several nodes, and has the name of one of them, of a value, or of
neither. An *anchor* is a node that a step certainly computes. A node that is no anchor was fused into a
neighbor: the step of its reader or of its maker, as the runtime names steps, else the other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collage.backends.contract import OpTime
from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex


@dataclass(frozen=True)
class ProfileStep:
    """One step of a runtime's profile."""

    names: tuple[str, ...]  # the runtime's names for it: of nodes, of values, or neither
    kind: str  # the runtime's name of what it does
    latency_us: float  # typical time of one execution
    # for a change of layout or type, which is no node: names of the value's maker, then of its
    # reader. The first that is known gets the time.
    between: tuple[str, ...] = ()


def typical_us(times_us: Sequence[float]) -> float:
    """The mean of the faster half: a single execution that was disturbed would take the whole model's time for itself."""
    faster = sorted(times_us)[: (len(times_us) + 1) // 2]
    return sum(faster) / len(faster)


def op_times(
    index: GraphIndex, steps: Sequence[ProfileStep], joins_reader: bool = True
) -> list[OpTime]:
    """The steps with the names of the nodes that each stands for.

    Steps with the same first anchor are added up. Steps without an anchor have no nodes.

    Args:
        steps: in the order of execution.
        joins_reader: True where a fused step is named by its last node.
    """
    known = {**index.producer, **{node.name: node.index for node in index.nodes}}
    merged: dict[int | str, tuple[set[int], list[ProfileStep]]] = {}
    for i, step in enumerate(steps):
        anchors = _anchors(known, step.names) or _anchors(known, step.between)[:1]
        key: int | str = anchors[0] if anchors else f"step {i}"
        nodes, parts = merged.setdefault(key, (set(), []))
        nodes.update(anchors)
        parts.append(step)
    groups = list(merged.values())
    members = _members(index, [nodes for nodes, _ in groups], joins_reader)
    found = []
    for names, (_, parts) in zip(members, groups, strict=True):
        longest = max(parts, key=lambda part: part.latency_us)
        found.append(OpTime(names, longest.kind, sum(part.latency_us for part in parts)))
    return found


def _anchors(known: dict[str, int], names: Sequence[str]) -> list[int]:
    return [a for a in (_anchor(known, name) for name in names) if a is not None]


def _anchor(known: dict[str, int], name: str) -> int | None:
    """The node of a name, without what runtimes append to it after a slash."""
    while name:
        if name in known:
            return known[name]
        name = name.rpartition("/")[0]
    return None


def _members(
    index: GraphIndex, anchors: Sequence[set[int]], joins_reader: bool
) -> list[tuple[str, ...]]:
    step_of: dict[int, int] = {}
    for step, nodes in enumerate(anchors):
        for node in nodes:
            step_of.setdefault(node, step)
    forwards = list(range(len(index.nodes)))
    for toward_reader in (joins_reader, not joins_reader):
        for node in reversed(forwards) if toward_reader else forwards:
            near = index.successors[node] if toward_reader else index.predecessors[node]
            steps = [step_of[other] for other in bits(near) if other in step_of]
            if node not in step_of and steps:
                step_of[node] = steps[0]
    found: list[list[str]] = [[] for _ in anchors]
    for node, step in sorted(step_of.items()):
        found[step].append(index.nodes[node].name)
    return [tuple(names) for names in found]

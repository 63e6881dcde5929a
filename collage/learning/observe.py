"""What a run saw of its model, as rows to learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.cost_db.costs.observations import Observation
from collage.learning.features import EDITION, features
from collage.learning.parts import parts_of
from collage.partitioner.graph.fingerprint import fingerprint
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target


@dataclass(frozen=True)
class Named:
    """How the targets of a run are written in rows."""

    hardware: str  # fingerprint of the machine
    model: str  # SHA-256 of the normalized model
    texts: Mapping[Target, str]  # canonical
    versions: Mapping[Target, str]  # of the runtimes


def observations_of(
    index: GraphIndex,
    named: Named,
    profiles_us: Mapping[Target, Mapping[int, float]],
    timed_us: Mapping[tuple[int, Target], float],
) -> list[Observation]:
    """Rows of the whole model, of parts of about the same time, and of parts that targets without a profile ran.

    Args:
        index: the graph.
        named: how targets are written.
        profiles_us: what each node takes, for targets that were profiled.
        timed_us: what parts took in plans that ran in turn, by nodes and target; at the pace of the profiles.
    """
    fastest = min(profiles_us.values(), key=lambda times: sum(times.values()), default=None)
    taken: dict[int, dict[Target, float]] = {}
    for part in parts_of(index, fastest) if fastest else ():
        taken[part] = {
            target: sum(us for node, us in times.items() if part >> node & 1)
            for target, times in profiles_us.items()
        }
    # Alone in a plan a part takes longer than by a profile, so the two are not told beside each other.
    for nodes, timed in timed_us:
        if nodes == index.all_nodes or timed not in profiles_us:
            taken[nodes] = {t: us for (part, t), us in timed_us.items() if part == nodes}
    found = []
    for nodes, times_us in taken.items():
        described, name = features(index, nodes), fingerprint(index, nodes)
        found += [
            Observation(
                hardware=named.hardware,
                target=named.texts[target],
                sub_graph=name,
                version=named.versions[target],
                model=named.model,
                is_whole=nodes == index.all_nodes,
                latency_us=us,
                edition=EDITION,
                features=described,
            )
            for target, us in times_us.items()
            if us > 0
        ]
    return found


def promised(index: GraphIndex, profiles_us: Sequence[Mapping[int, float]]) -> float:
    """What the best target for each part would save, without borders, as a share of the best target's time."""
    if len(profiles_us) < 2:
        return 0.0
    best = min(profiles_us, key=lambda times: sum(times.values()))
    least_us = sum(
        min(sum(us for node, us in times.items() if part >> node & 1) for times in profiles_us)
        for part in parts_of(index, best)
    )
    return 1.0 - least_us / sum(best.values())

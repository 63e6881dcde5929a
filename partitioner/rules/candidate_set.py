"""All candidates of one model, indexed by node, and what was refused.

Invariants: no two candidates have the same nodes and target; every candidate is convex and not empty;
`by_node[i]` is ascending; a node in no candidate of a target has that target's reason in `refusals`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from collage.partitioner.candidate import Candidate, bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import Target


@dataclass(frozen=True)
class CandidateSet:
    """Candidates, indexed by node."""

    candidates: tuple[Candidate, ...]  # in the order in which the targets and their rules gave them
    by_node: tuple[tuple[int, ...], ...]  # per node the positions of the candidates that hold it
    # why a target has no candidate for a node
    refusals: Mapping[tuple[int, Target], str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # bounds that were hit while looking for candidates, one sentence each

    @classmethod
    def build(
        cls,
        index: GraphIndex,
        candidates: Iterable[Candidate],
        refusals: Mapping[tuple[int, Target], str] | None = None,
        notes: Iterable[str] = (),
    ) -> CandidateSet:
        """Drop duplicates and what is empty or not convex, and index the rest."""
        kept: dict[tuple[int, Target], Candidate] = {}
        for candidate in candidates:
            key = (candidate.nodes, candidate.target)
            if candidate.nodes and key not in kept and index.is_convex(candidate.nodes):
                kept[key] = candidate
        holding: list[list[int]] = [[] for _ in index.nodes]
        for position, candidate in enumerate(kept.values()):
            for i in bits(candidate.nodes):
                holding[i].append(position)
        return cls(tuple(kept.values()), tuple(map(tuple, holding)), dict(refusals or {}), tuple(notes))

    def __len__(self) -> int:
        return len(self.candidates)

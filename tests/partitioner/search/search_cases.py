"""Random small searches with everything at once: borders, domains, pins, limits, budgets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from collage.partitioner.candidate import Candidate, bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.search.constraints import Budget, Constraints, Refusals
from collage.partitioner.search.search import Searcher
from collage.partitioner.search.selection import Placement, Selection, TargetGlob
from collage.partitioner.search.task import Solution
from collage.partitioner.search.transition import CopyCost, Transitions
from collage.partitioner.target import Target
from tests.partitioner.random_graphs import random_models

TARGETS = (Target("alpha"), Target("beta"), Target("gamma"))
_DOMAINS = (
    ("host", "host", "host"),
    ("host", "device", "device"),
    ("host", "device", "other"),
    ("device", "device", "device"),
)


@dataclass(frozen=True)
class Case:
    """A search and how many plans are wanted."""

    index: GraphIndex
    candidates: tuple[Candidate, ...]
    cost_us: tuple[float | None, ...]
    transitions: Transitions
    constraints: Constraints
    k: int


@st.composite
def cases(draw: st.DrawFn, max_nodes: int = 7) -> Case:
    """A case on a random graph; the graph shrinks, all else hangs on one seed."""
    index = draw(random_models(max_nodes)).index
    chance = random.Random(draw(st.integers(0, 1 << 30)))
    candidates = _candidates(index, chance)
    return Case(
        index,
        candidates,
        tuple(_cost_us(candidate, chance) for candidate in candidates),
        _transitions(chance),
        _constraints(index, len(candidates), chance),
        chance.choice((1, 1, 3, 6)),
    )


def _candidates(index: GraphIndex, chance: random.Random) -> tuple[Candidate, ...]:
    several = [m for m in range(1, index.all_nodes + 1) if m & (m - 1) and index.is_convex(m)]
    chance.shuffle(several)
    sets = [1 << i for i in range(len(index.nodes))] + several[:12]
    offered = [(nodes, target) for nodes in sets for target in TARGETS if chance.random() < 0.7]
    return tuple(Candidate(nodes, target) for nodes, target in offered)


def _cost_us(candidate: Candidate, chance: random.Random) -> float | None:
    if chance.random() < 0.05:
        return None
    return chance.uniform(1, 10) * candidate.nodes.bit_count() ** chance.uniform(0.3, 1)


def _transitions(chance: random.Random) -> Transitions:
    names = ("host", "device", "other")
    ways = [(a, b) for a in names for b in names if a != b]
    copies = dict.fromkeys(ways, CopyCost(chance.choice((0.0, 0.5))))
    if chance.random() < 0.6:
        dear = [way for way in ways if chance.random() < 0.7]
        copies |= {way: CopyCost(chance.uniform(0, 3), chance.uniform(0, 3e4)) for way in dear}
    return Transitions(
        default_call_us=chance.choice((0.0, 0.01, 1.0)),
        domains=dict(zip(TARGETS, chance.choice(_DOMAINS), strict=True)),
        copies=copies,
        border_us={TARGETS[0]: 1.0, TARGETS[1]: 0.3} if chance.random() < 0.5 else {},
    )


def _constraints(index: GraphIndex, candidates: int, chance: random.Random) -> Constraints:
    pins = []
    if chance.random() < 0.3:
        nodes = bits(chance.randint(1, index.all_nodes))
        there = TargetGlob(chance.choice(TARGETS).backend)
        pins += [Placement(Selection(index.nodes[i].name), there) for i in nodes]
    budgets = []
    if chance.random() < 0.4:
        amounts = tuple(chance.choice((0.0, chance.uniform(0, 1))) for _ in range(candidates))
        budgets.append(Budget("error", amounts, chance.uniform(0.3, 2)))
    return Constraints(
        pins=tuple(pins),
        max_partitions=chance.choice((None, None, 2, 3, 4)),
        max_devices=chance.choice((None, None, 1, 2)),
        min_partition_nodes=chance.choice((1, 1, 1, 2)),
        budgets=tuple(budgets),
    )


def search(
    index: GraphIndex,
    candidates: Sequence[Candidate],
    cost_us: Sequence[float | None],
    refusals: Refusals | None = None,
    **options: Any,
) -> Solution:
    """The solution of a search from nothing."""
    return Searcher(index, candidates, refusals).solve(cost_us, **options)

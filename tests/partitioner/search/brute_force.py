"""Every plan by plain enumeration, to compare the search with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collage.partitioner.candidate import Candidate
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.search.transition import Transitions


def all_plans(index: GraphIndex, candidates: Sequence[Candidate]) -> Iterator[tuple[int, ...]]:
    """Every exact cover whose partitions can run in some order."""

    def extend(covered: int, chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if covered == index.all_nodes:
            if can_run(index, [candidates[c].nodes for c in chosen]):
                yield chosen
            return
        free = ~covered & (covered + 1)
        for position, candidate in enumerate(candidates):
            if candidate.nodes & free and not candidate.nodes & covered:
                yield from extend(covered | candidate.nodes, (*chosen, position))

    return extend(0, ())


def can_run(index: GraphIndex, sets: Sequence[int]) -> bool:
    """True when partitions can be run one by one, each after all that it depends on."""
    done = 0
    waiting = list(sets)
    while waiting:
        ready = [nodes for nodes in waiting if not index.ancestors_of(nodes) & ~nodes & ~done]
        if not ready:
            return False
        done |= ready[0]
        waiting.remove(ready[0])
    return True


def ranked(
    index: GraphIndex,
    candidates: Sequence[Candidate],
    cost_us: Sequence[float | None],
    transitions: Transitions,
    constraints: Constraints,
) -> list[tuple[float, frozenset[int]]]:
    """All plans that keep to the constraints, the cheapest first."""
    found = []
    allowed = constraints.allowed(index, candidates)
    for chosen in all_plans(index, candidates):
        costs = [cost_us[c] for c in chosen]
        partitions = [candidates[c] for c in chosen]
        domains = {transitions.domain(p.target) for p in partitions}
        if (
            None in costs
            or not all(allowed[c] for c in chosen)
            or (constraints.max_partitions is not None and len(chosen) > constraints.max_partitions)
            or (constraints.max_devices is not None and len(domains) > constraints.max_devices)
            or any(sum(b.amounts[c] for c in chosen) > b.limit for b in constraints.budgets)
        ):
            continue
        own = sum(cost for cost in costs if cost is not None)
        found.append((own + transitions.plan_cost(index, partitions), frozenset(chosen)))
    return sorted(found, key=lambda plan: plan[0])

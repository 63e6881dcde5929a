"""Plans without search, which a search has to beat: what runtimes' own partitioners do.

* `priority`: an ordered list of targets; each node goes to the first that takes it.
* `greedy`: the same, the target first that claims the largest region.

Nodes of one target become partitions in *turns*: all that are ready and belong to one target, then
those of another. So they can run one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from collage.partitioner.candidate import Candidate, Plan, bits
from collage.partitioner.errors import NoPlanError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.rules.regions import maximal_regions
from collage.partitioner.rules.target_spec import TargetSpec
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.target import Target

_UNBOUND = Constraints()


def greedy(index: GraphIndex, specs: Sequence[TargetSpec], constraints: Constraints = _UNBOUND) -> Plan:
    """The plan in which the target with the largest region takes all it can.

    Only pins and bans are respected.

    Raises:
        NoPlanError: no target takes some node.
    """
    taken = supported_nodes(index, specs, constraints)
    claims = [
        max((region.bit_count() for region in maximal_regions(index, taken[spec.target])), default=0)
        for spec in specs
    ]
    order = sorted(range(len(specs)), key=lambda i: -claims[i])
    return priority(index, [specs[i] for i in order], constraints)


def priority(
    index: GraphIndex, specs: Sequence[TargetSpec], constraints: Constraints = _UNBOUND
) -> Plan:
    """Each node on the first target that takes it; only pins and bans are respected.

    Raises:
        NoPlanError: no target takes some node.
    """
    taken = supported_nodes(index, specs, constraints)
    left = index.all_nodes
    shares: list[tuple[Target, int]] = []
    for spec in specs:
        shares.append((spec.target, taken[spec.target] & left))
        left &= ~taken[spec.target]
    if left:
        node = index.nodes[bits(left)[0]]
        reasons = [f"{spec.target}: {spec.supports(index, node.index)}" for spec in specs]
        raise NoPlanError(
            f"{left.bit_count()} nodes are taken by no target, first {node.name!r} ({node.op}): "
            f"{'; '.join(reasons)}; add a target that takes them, such as onnxruntime"
        )
    return Plan(tuple(_in_turns(index, shares)))


def supported_nodes(
    index: GraphIndex, specs: Sequence[TargetSpec], constraints: Constraints = _UNBOUND
) -> dict[Target, int]:
    """Per target the nodes (bitset) that it takes and constraints leave it."""
    kept_away = constraints.forbidden_nodes(index, [spec.target for spec in specs])
    return {
        spec.target: sum(1 << i for i in range(len(index.nodes)) if spec.supports(index, i) is None)
        & ~kept_away[spec.target]
        for spec in specs
    }


def _in_turns(index: GraphIndex, shares: Sequence[tuple[Target, int]]) -> list[Candidate]:
    """Partitions in running order; of the ready targets, the one with the most nodes goes on."""
    waiting = [mask.bit_count() for mask in index.predecessors]
    owner = {i: number for number, (_, nodes) in enumerate(shares) for i in bits(nodes)}
    ready: list[list[int]] = [[] for _ in shares]
    for i, count in enumerate(waiting):
        if not count:
            ready[owner[i]].append(i)
    plan = []
    while any(ready):
        turns = [_turn(index, nodes, waiting, owner, number) for number, nodes in enumerate(ready)]
        number = max(range(len(turns)), key=lambda n: turns[n].bit_count())
        ready[number] = []
        plan.append(Candidate(turns[number], shares[number][0], "greedy"))
        for node in bits(turns[number]):
            for reader in bits(index.successors[node]):
                waiting[reader] -= 1
                if not waiting[reader] and owner[reader] != number:
                    ready[owner[reader]].append(reader)
    return plan


def _turn(
    index: GraphIndex, ready: Sequence[int], waiting: Sequence[int], owner: dict[int, int], number: int
) -> int:
    """All that one target can run at once when it begins with what is ready (bitset)."""
    turn = 0
    missing: dict[int, int] = {}
    stack = list(ready)
    while stack:
        node = stack.pop()
        turn |= 1 << node
        for reader in bits(index.successors[node]):
            missing[reader] = missing.get(reader, waiting[reader]) - 1
            if not missing[reader] and owner[reader] == number:
                stack.append(reader)
    return turn

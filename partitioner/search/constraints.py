"""What a plan must respect, beside covering the model.

Terms: a *pin* says that some nodes go only to some targets, a *ban* that they do not go there. Both,
and `min_partition_nodes`, only take candidates away. The others bind a plan as a whole: the number of
partitions or devices (memory domains), and *budgets*: sums over the partitions with a limit (error,
memory).

`Constraints.check` finds contradictions before anything is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from collage.partitioner.candidate import Candidate
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.search.selection import ConstraintError, Placement
from collage.partitioner.target import HOST_MEMORY, Target

Refusals = Mapping[tuple[int, Target], str]


@dataclass(frozen=True)
class Budget:
    """A sum over a plan's partitions that must not exceed a limit."""

    name: str  # for messages, e.g. `error` or `memory`.
    # per candidate, in the order of the candidates given to search; none may be negative, infinity
    # takes a candidate away
    amounts: tuple[float, ...]
    limit: float  # in the unit of the amounts

    def __post_init__(self) -> None:
        if math.isnan(self.limit) or any(math.isnan(a) or a < 0 for a in self.amounts):
            raise ConstraintError(
                f"the {self.name} budget has a negative amount or one that is no number"
            )

    def among(self, candidates: Sequence[Candidate], some: Sequence[Candidate]) -> Budget:
        """The same budget for a search among some of the candidates that it is for."""
        amounts = dict(zip(candidates, self.amounts, strict=True))
        return replace(self, amounts=tuple(amounts[candidate] for candidate in some))


@dataclass(frozen=True)
class Constraints:
    """Everything that a plan must respect; the default is nothing."""

    pins: tuple[Placement, ...] = ()  # only there
    bans: tuple[Placement, ...] = ()  # not there
    max_partitions: int | None = None  # None for no bound
    # distinct memory domains of the partitions' targets; None for no bound
    max_devices: int | None = None
    min_partition_nodes: int = 1  # no smaller partition, unless it is the whole graph
    budgets: tuple[Budget, ...] = ()  # see `Budget`

    def __post_init__(self) -> None:
        for name in ("max_partitions", "max_devices", "min_partition_nodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConstraintError(f"{name} is {value}; it must be at least 1")

    @classmethod
    def parse(
        cls,
        *,
        pins: Iterable[str] = (),
        bans: Iterable[str] = (),
        max_partitions: int | None = None,
        max_devices: int | None = None,
        min_partition_nodes: int = 1,
    ) -> Constraints:
        """Constraints with pins and bans in text form.

        Raises:
            ConstraintError: a text is misspelled, or a number is less than one.
        """
        return cls(
            pins=tuple(Placement.parse(text) for text in pins),
            bans=tuple(Placement.parse(text) for text in bans),
            max_partitions=max_partitions,
            max_devices=max_devices,
            min_partition_nodes=min_partition_nodes,
        )

    def forbidden_nodes(self, index: GraphIndex, targets: Iterable[Target]) -> dict[Target, int]:
        """Per target the nodes (bitset) that pins and bans keep away from it.

        Raises:
            ConstraintError: a pin or ban fits no node.
        """
        pins = [(rule, rule.selection.resolve(index)) for rule in self.pins]
        bans = [(rule, rule.selection.resolve(index)) for rule in self.bans]
        kept_away = {}
        for target in targets:
            nodes = 0
            for rule, selected in pins:
                nodes |= 0 if target in rule.target else selected
            for rule, selected in bans:
                nodes |= selected if target in rule.target else 0
            kept_away[target] = nodes
        return kept_away

    def allowed(self, index: GraphIndex, candidates: Sequence[Candidate]) -> list[bool]:
        """Per candidate whether pins, bans, its size and infinite budget amounts leave it.

        Raises:
            ConstraintError: a pin or ban fits no node, or a budget is not for these candidates.
        """
        kept_away = self.forbidden_nodes(index, {c.target for c in candidates})
        least = self.min_partition_nodes
        allowed = [
            not c.nodes & kept_away[c.target]
            and (c.nodes.bit_count() >= least or c.nodes == index.all_nodes)
            for c in candidates
        ]
        for budget in self.budgets:
            if len(budget.amounts) != len(candidates):
                raise ConstraintError(
                    f"the {budget.name} budget has {len(budget.amounts)} amounts for "
                    f"{len(candidates)} candidates; give one for each"
                )
            allowed = [
                ok and amount <= budget.limit
                for ok, amount in zip(allowed, budget.amounts, strict=True)
            ]
        return allowed

    def check(
        self,
        index: GraphIndex,
        targets: Sequence[Target],
        refusals: Refusals | None = None,
        domains: Mapping[Target, str] | None = None,
    ) -> None:
        """Find contradictions, before anything is measured.

        `refusals` says why a target takes a node in no way; `domains` gives memory domains other than
        `host`.

        Raises:
            ConstraintError: a pin names no node or none of the targets; some node is left without a
                target that takes it; or the pins need more partitions or devices than are allowed.
        """
        for rule in self.pins:
            if not any(target in rule.target for target in targets):
                given = ", ".join(map(str, targets))
                raise ConstraintError(f"pin '{rule}' means none of the targets given ({given})")
        kept_away = self.forbidden_nodes(index, targets)
        choices: dict[int, frozenset[Target]] = {}
        for node in range(len(index.nodes)):
            free = [target for target in targets if not kept_away[target] >> node & 1]
            taking = [target for target in free if (node, target) not in (refusals or {})]
            if not taking and (len(free) < len(targets) or not free):
                raise ConstraintError(self._conflict(index, node, targets, free, refusals or {}))
            choices[node] = frozenset(taking)
        self._check_counts(choices.values(), domains or {})

    def _conflict(
        self,
        index: GraphIndex,
        node: int,
        targets: Sequence[Target],
        free: Sequence[Target],
        refusals: Refusals,
    ) -> str:
        rules = [
            f"{kind} '{rule}'"
            for kind, group in (("pin", self.pins), ("ban", self.bans))
            for rule in group
            if rule.selection.resolve(index) >> node & 1
        ]
        info = index.nodes[node]
        said = f"node {info.name} ({info.op}) is left without a target by {' and '.join(rules)}"
        reasons = [
            f"{t} refuses it: {refusals[node, t]}"
            for t in targets
            if (node, t) in refusals and t in free
        ]
        return "; ".join([said, *reasons, "change one of them"])

    def _check_counts(
        self, choices: Iterable[frozenset[Target]], domains: Mapping[Target, str]
    ) -> None:
        """Nodes whose choices are pairwise disjoint need a partition each, and perhaps a device."""
        apart: list[frozenset[Target]] = []
        devices: list[frozenset[str]] = []
        for choice in sorted(set(choices), key=len):
            if all(not choice & other for other in apart):
                apart.append(choice)
            there = frozenset(domains.get(target, HOST_MEMORY) for target in choice)
            if all(not there & other for other in devices):
                devices.append(there)
        for name, least, limit in (
            ("partitions", len(apart), self.max_partitions),
            ("devices", len(devices), self.max_devices),
        ):
            if limit is not None and least > limit:
                raise ConstraintError(
                    f"at least {least} {name} are needed, since no target takes every node that pins, "
                    f"bans and refusals leave; allow more than {limit} or change the pins"
                )

    def kept_away_by(self, index: GraphIndex, node: int, target: Target) -> str | None:
        """The pin or ban that keeps a node from a target, for messages."""
        for kind, rules in (("pin", self.pins), ("ban", self.bans)):
            for rule in rules:
                inside = rule.selection.resolve(index) >> node & 1
                if inside and (target in rule.target) == (kind == "ban"):
                    return f"{kind} '{rule}'"
        return None

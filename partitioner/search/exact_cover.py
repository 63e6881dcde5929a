"""The program that search solves: minimum-cost exact cover, with what borders cost.

Columns: one integer per candidate (1: it is a partition of the plan); per *class* and position of the
line the share of the class there; and what is paid for borders.

Terms: classes are the least division of targets that tells all border costs apart: one class when no
border cost depends on who is on its other side, else the memory domains, else the targets. A *toll* is a
cost paid once per value when it comes from one of some classes and is read in one of some others.

Rows for a toll on value v, made by node p and read by nodes u: paid >= share of the reading classes at u
- share of the reading classes and of the free ones at p. For two memory domains these are the rows of a
minimum cut, so that the linear relaxation loses nothing. Where several origins cost differently, each has
a column that its share at p bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage.partitioner.search.candidate_arrays import CandidateArrays
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.search.cycle_cuts import Ring
from collage.partitioner.search.milp import Floats, Ints, Program
from collage.partitioner.search.transition import Transitions
from collage.partitioner.target import Target


@dataclass(frozen=True)
class _Toll:
    """Cost per origin: (classes, cost of a value by its size in bytes), and the classes that read."""

    origins: tuple[tuple[frozenset[int], Floats], ...]
    readers: frozenset[int]


class Cover:
    """Builds the program for some of the candidates.

    Args:
        structure: all candidates.
        active: those that may be chosen.
        cost_us: of the active ones, with what their borders cost by themselves.
        transitions: what borders cost.
        constraints: what binds the plan as a whole.
    """

    def __init__(
        self,
        structure: CandidateArrays,
        active: Ints,
        cost_us: Floats,
        transitions: Transitions,
        constraints: Constraints,
    ) -> None:
        self.active = active
        self.program = Program()
        self._structure = structure
        self._transitions = transitions
        self._constraints = constraints
        self._classes, self._class_of_target = classes(structure, transitions, constraints)
        self._own = self._class_of_target[structure.target_of[active]]
        self.program.add_columns(cost_us, integer=True)
        self._share = 0
        self._add_cover()
        if len(self._classes) > 1:
            self._add_copies()
        else:
            self.program.offset = self._only_copies()
        self._add_pairs()
        self._add_limits()

    def add_ring(self, ring: Ring) -> None:
        """Forbid what waits in a ring; see `collage.partitioner.search.cycle_cuts`."""
        legs = [self._structure.holds(*leg)[self.active] for leg in ring.legs]
        count = np.sum(legs, axis=0)
        count[count == len(legs)] = 0
        columns = np.flatnonzero(count)
        self.program.add_row(columns, count[columns].astype(float), -np.inf, len(legs) - 1.0)

    def add_difference(self, chosen: Sequence[int], least: int) -> None:
        """Demand that the next plan does without so many partitions of a known one (or all of them)."""
        columns = np.flatnonzero(np.isin(self.active, np.asarray(chosen, np.int64)))
        self.program.add_row(columns, 1.0, -np.inf, float(max(0, len(chosen) - least)))

    def _add_cover(self) -> None:
        structure, program = self._structure, self.program
        count, kinds = structure.node_count, len(self._classes)
        column = np.full(len(structure.candidates), -1, np.int64)
        column[self.active] = np.arange(len(self.active))
        kept = column[structure.run_owner] >= 0
        owner = column[structure.run_owner[kept]]
        starts, ends = structure.run_start[kept], structure.run_end[kept]
        inner = ends < count
        offset = self._own[owner] * count if kinds > 1 else np.zeros(len(owner), np.int64)
        if kinds == 1:
            lower = np.zeros(count)
            lower[0] = 1.0
            first = program.add_rows(lower, lower, count)
        else:
            first = program.add_rows(0.0, 0.0, count * kinds)
            self._share = program.add_columns(np.zeros(count * kinds))
            shares = np.arange(count * kinds)
            program.add_entries(first + shares, self._share + shares, -1.0)
            later = shares[shares % count > 0]
            program.add_entries(first + later, self._share + later - 1, 1.0)
            total = program.add_rows(1.0, 1.0, count)
            program.add_entries(total + shares % count, self._share + shares, 1.0)
        program.add_entries(first + offset + starts, owner, 1.0)
        program.add_entries(first + offset[inner] + ends[inner], owner[inner], -1.0)

    def _shares(self, kinds: frozenset[int], node: int) -> list[int]:
        """Columns of the shares of some classes at a node."""
        structure = self._structure
        return [
            self._share + kind * structure.node_count + int(structure.position[node])
            for kind in sorted(kinds)
        ]

    def _add_copies(self) -> None:
        transitions = self._transitions
        domain_of = [transitions.domain(members[0]) for members in self._classes]
        domains = sorted({*domain_of, transitions.io_domain})
        inside = {d: frozenset(k for k, name in enumerate(domain_of) if name == d) for d in domains}
        sizes = [value.size_bytes for value in self._structure.crossings]
        for domain in domains:
            origins = tuple(
                (inside[o], np.array([transitions.copy_us(o, domain, size) for size in sizes]))
                for o in domains
                if o != domain
            )
            self._add_toll(_Toll(origins, inside[domain]), transitions.io_domain == domain)
            if domain != transitions.io_domain:
                self._add_uploads(domain, inside[domain])

    def _only_copies(self) -> float:
        """What graph inputs and outputs cost when every target is in one memory domain."""
        there, outside = self._transitions.domain(self._classes[0][0]), self._transitions.io_domain
        total = 0.0
        for value in self._structure.crossings:
            if value.producer is None:
                total += self._transitions.copy_us(outside, there, value.size_bytes)
            elif value.is_output:
                total += self._transitions.copy_us(there, outside, value.size_bytes)
        return total

    def _add_uploads(self, domain: str, readers: frozenset[int]) -> None:
        """Graph inputs come from the io domain."""
        for value in self._structure.crossings:
            cost = self._transitions.copy_us(self._transitions.io_domain, domain, value.size_bytes)
            if value.producer is None and cost and readers:
                paid = self.program.add_columns(np.array([cost]))
                for reader in value.readers:
                    shares = self._shares(readers, reader)
                    columns = np.array([paid, *shares])
                    self.program.add_row(columns, np.array([1.0] + [-1.0] * len(shares)), 0.0, np.inf)

    def _add_toll(self, toll: _Toll, wanted_outside: bool) -> None:
        every = frozenset(range(len(self._classes)))
        for number, value in enumerate(self._structure.crossings):
            if value.producer is None:
                continue
            costs = [(kinds, float(cost[number])) for kinds, cost in toll.origins if kinds]
            paying = [(kinds, cost) for kinds, cost in costs if cost]
            demands = [self._shares(toll.readers, reader) for reader in value.readers if toll.readers]
            if value.is_output and wanted_outside:
                demands = [[]]  # It is wanted for certain, which implies all that readers demand.
            if not paying or not demands:
                continue
            if len({cost for _, cost in paying}) == 1:
                paying = [(frozenset().union(*(kinds for kinds, _ in paying)), paying[0][1])]
            paid = self.program.add_columns(np.array([cost for _, cost in paying]))
            columns = np.arange(paid, paid + len(paying))
            free = self._shares(every.difference(*(kinds for kinds, _ in paying)), value.producer)
            for demand in demands:
                self.program.add_row(
                    np.array([*columns, *free, *demand]),
                    np.array([1.0] * (len(columns) + len(free)) + [-1.0] * len(demand)),
                    0.0 if demand else 1.0,
                    np.inf,
                )
            if len(paying) > 1:
                for column, (kinds, _) in zip(columns, paying, strict=True):
                    shares = self._shares(kinds, value.producer)
                    values = np.array([-1.0] + [1.0] * len(shares))
                    self.program.add_row(np.array([column, *shares]), values, 0.0, np.inf)

    def _add_pairs(self) -> None:
        """One toll per reading target, whose origins are the others: tighter than one per pair."""
        targets = self._structure.targets
        if not any(self._transitions.pair_us.values()):
            return
        shared = np.array([len(value.readers) > 1 for value in self._structure.crossings])
        for kind, reader in zip(self._class_of_target.tolist(), targets, strict=True):
            # A value that only one node reads is paid once in any case, so that what its reader pays
            # whoever made it is among the candidate's own costs.
            least = np.where(shared, 0.0, self._transitions.least_pair_us(targets, reader))
            costs = {
                other: self._transitions.pair_us.get((maker, reader), 0.0) - least
                for other, maker in zip(self._class_of_target.tolist(), targets, strict=True)
            }
            own = np.maximum(costs.pop(kind), 0.0)
            origins = tuple((frozenset([o]), np.maximum(cost, 0.0)) for o, cost in costs.items())
            self._add_toll(_Toll(origins, frozenset([kind])), wanted_outside=False)
            if own.any():
                self._add_same_pair(kind, own)

    def _add_same_pair(self, kind: int, costs: Floats) -> None:
        """Paid when the reader's candidate is of this class and does not hold the maker, whose is too."""
        structure = self._structure
        for value, cost in zip(structure.crossings, costs, strict=True):
            if value.producer is None or not value.readers or not cost:
                continue
            paid = self.program.add_columns(np.array([cost]))
            makes = structure.holds(value.producer)[self.active]
            for node in value.readers:
                reads = structure.holds(node)[self.active]
                enter = np.flatnonzero(reads & ~makes & (self._own == kind))
                leave = np.flatnonzero(makes & ~reads & (self._own != kind))
                columns = np.concatenate(([paid], leave, enter))
                values = np.concatenate((np.ones(1 + len(leave)), -np.ones(len(enter))))
                self.program.add_row(columns, values, 0.0, np.inf)

    def _add_limits(self) -> None:
        program, constraints = self.program, self._constraints
        everyone = np.arange(len(self.active))
        if constraints.max_partitions is not None:
            program.add_row(everyone, 1.0, -np.inf, float(constraints.max_partitions))
        for budget in constraints.budgets:
            amounts = np.array(budget.amounts)[self.active]
            # Scaled, because amounts of a millionth would drown in the solver's tolerance.
            scale = budget.limit or 1.0
            program.add_row(everyone, amounts / scale, -np.inf, budget.limit / scale)
        if constraints.max_devices is not None and len(self._classes) > 1:
            self._add_device_limit(constraints.max_devices)

    def _add_device_limit(self, most: int) -> None:
        structure, program = self._structure, self.program
        domain_of = [self._transitions.domain(members[0]) for members in self._classes]
        domains = sorted(set(domain_of))
        used = program.add_columns(np.zeros(len(domains)), integer=True)
        for number, domain in enumerate(domains):
            kinds = frozenset(k for k, name in enumerate(domain_of) if name == domain)
            for node in range(structure.node_count):
                shares = self._shares(kinds, node)
                columns = np.array([used + number, *shares])
                program.add_row(columns, np.array([1.0] + [-1.0] * len(shares)), 0.0, np.inf)
        program.add_row(np.arange(used, used + len(domains)), 1.0, -np.inf, float(most))


def classes(
    structure: CandidateArrays, transitions: Transitions, constraints: Constraints
) -> tuple[list[list[Target]], Ints]:
    """Targets of each class, and the class of each target of the structure."""
    targets = structure.targets
    known = set(targets)
    keys: list[object]
    if any(cost and a in known and b in known for (a, b), cost in transitions.pair_us.items()):
        keys = list(targets)
    elif _domains_matter(structure, transitions, constraints):
        keys = [transitions.domain(target) for target in targets]
    else:
        keys = [None for _ in targets]
    distinct = list(dict.fromkeys(keys))
    members = [[t for t, key in zip(targets, keys, strict=True) if key == one] for one in distinct]
    return members, np.array([distinct.index(key) for key in keys], np.int64)


def _domains_matter(
    structure: CandidateArrays, transitions: Transitions, constraints: Constraints
) -> bool:
    domains = {transitions.domain(target) for target in structure.targets} | {transitions.io_domain}
    if len(domains) == 1:
        return False
    if constraints.max_devices is not None:
        return True
    costs = [transitions.default_copy, *transitions.copies.values()]
    return any(cost.fixed_us or cost.us_per_mib for cost in costs)

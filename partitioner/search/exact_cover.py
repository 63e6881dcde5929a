"""The program that search solves: minimum-cost exact cover, with what copies cost.

Columns: one integer per candidate (1: it is a partition of the plan); per *class* and position of the
line the share of the class there; and what is paid for copies.

Terms: a class is the targets of one memory domain; there is one class where copies between domains cost
nothing and nothing limits their number.

Rows for a copy of value v, made by node p and read by nodes u, to a domain: paid >= share of the
domain's class at u - share of that class and of those that copy for nothing at p. For two memory
domains these are the rows of a minimum cut, so that the linear relaxation loses nothing. Where several
origins cost differently, each has a column that its share at p bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from collage.partitioner.search.candidate_arrays import CandidateArrays
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.search.cycle_cuts import Cycle
from collage.partitioner.search.milp import Floats, Ints, Program
from collage.partitioner.search.transition import Crossing, Transitions
from collage.partitioner.target import HOST_MEMORY


class Cover:
    """The program for some of the candidates.

    Args:
        cost_us: of the active ones, with the borders' cost that depends on them alone.
        constraints: what binds the plan as a whole.
    """

    def __init__(
        self,
        arrays: CandidateArrays,
        active: Ints,
        cost_us: Floats,
        transitions: Transitions,
        constraints: Constraints,
    ) -> None:
        self.active = active
        self.program = Program()
        self._arrays = arrays
        self._transitions = transitions
        self._constraints = constraints
        self._domains, class_of_target = classes(arrays, transitions, constraints)
        self._own = class_of_target[arrays.target_of[active]]
        self.program.add_columns(cost_us, integer=True)
        self._share = 0
        self._add_cover()
        if len(self._domains) > 1:
            self._add_copies()
        else:
            self.program.offset = self._only_copies()
        self._add_limits()

    def add_cycle(self, cycle: Cycle) -> None:
        """Forbid a cycle; see `cycle_cuts`."""
        legs = [self._arrays.holds(first, last)[self.active] for first, last in cycle.legs]
        count = np.sum(legs, axis=0)
        count[count == len(legs)] = 0
        columns = np.flatnonzero(count)
        self.program.add_row(columns, count[columns].astype(float), -np.inf, len(legs) - 1.0)

    def exclude(self, chosen: Sequence[int]) -> None:
        """Demand that the next plan differs from a known one."""
        columns = np.flatnonzero(np.isin(self.active, np.asarray(chosen, np.int64)))
        self.program.add_row(columns, 1.0, -np.inf, len(chosen) - 1.0)

    def _add_cover(self) -> None:
        arrays, program = self._arrays, self.program
        count, kinds = arrays.node_count, len(self._domains)
        column = np.full(len(arrays.candidates), -1, np.int64)
        column[self.active] = np.arange(len(self.active))
        kept = column[arrays.run_owner] >= 0
        owner = column[arrays.run_owner[kept]]
        starts, ends = arrays.run_start[kept], arrays.run_end[kept]
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

    def _shares(self, kinds: Iterable[int], node: int) -> list[int]:
        """Columns of the shares of some classes at a node."""
        arrays = self._arrays
        position = int(arrays.position[node])
        return [self._share + kind * arrays.node_count + position for kind in kinds]

    def _only_copies(self) -> float:
        """What graph inputs and outputs cost when every target is in one memory domain."""
        there = self._domains[0]
        total = 0.0
        for value in self._arrays.crossings:
            if value.producer is None:
                total += self._transitions.copy_us(HOST_MEMORY, there, value.size_bytes)
            elif value.is_output:
                total += self._transitions.copy_us(there, HOST_MEMORY, value.size_bytes)
        return total

    def _add_copies(self) -> None:
        for domain in sorted({*self._domains, HOST_MEMORY}):
            for value in self._arrays.crossings:
                if value.producer is not None:
                    self._add_copy(value, value.producer, domain)
                elif domain != HOST_MEMORY:
                    self._add_upload(value, domain)

    def _add_upload(self, value: Crossing, domain: str) -> None:
        """A graph input comes from the host."""
        cost = self._transitions.copy_us(HOST_MEMORY, domain, value.size_bytes)
        if cost:
            paid = self.program.add_columns(np.array([cost]))
            for reader in value.readers:
                self._add_bound([paid], self._shares([self._domains.index(domain)], reader))

    def _add_copy(self, value: Crossing, producer: int, domain: str) -> None:
        """What a value that a node makes costs where a domain reads it."""
        costs = [self._transitions.copy_us(d, domain, value.size_bytes) for d in self._domains]
        paying = [([kind], cost) for kind, cost in enumerate(costs) if cost]
        readers = [kind for kind, name in enumerate(self._domains) if name == domain]
        demands = [self._shares(readers, node) for node in value.readers] if readers else []
        if value.is_output and domain == HOST_MEMORY:
            demands = [[]]  # It is wanted for certain, which implies all that readers demand.
        if not paying or not demands:
            return
        if len({cost for _, cost in paying}) == 1:
            paying = [([kind for kinds, _ in paying for kind in kinds], paying[0][1])]
        first = self.program.add_columns(np.array([cost for _, cost in paying]))
        paid = list(range(first, first + len(paying)))
        free = self._shares([kind for kind, cost in enumerate(costs) if not cost], producer)
        for demand in demands:
            self._add_bound([*paid, *free], demand, least=0.0 if demand else 1.0)
        if len(paying) > 1:
            for column, (kinds, _) in zip(paid, paying, strict=True):
                self._add_bound(self._shares(kinds, producer), [column])

    def _add_bound(self, columns: Sequence[int], less: Sequence[int], least: float = 0.0) -> None:
        """The sum of some columns is at least that of others, or one more."""
        values = np.array([1.0] * len(columns) + [-1.0] * len(less))
        self.program.add_row(np.array([*columns, *less]), values, least, np.inf)

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
        if constraints.max_devices is not None and len(self._domains) > 1:
            self._add_device_limit(constraints.max_devices)

    def _add_device_limit(self, most: int) -> None:
        count = len(self._domains)
        first = self.program.add_columns(np.zeros(count), integer=True)
        for kind in range(count):
            for node in range(self._arrays.node_count):
                self._add_bound([first + kind], self._shares([kind], node))
        self.program.add_row(np.arange(first, first + count), 1.0, -np.inf, float(most))


def classes(
    arrays: CandidateArrays, transitions: Transitions, constraints: Constraints
) -> tuple[list[str], Ints]:
    """The memory domain of each class, and the class of each target of the candidates."""
    domains = [transitions.domain(target) for target in arrays.targets]
    if not _domains_matter({*domains, HOST_MEMORY}, transitions, constraints):
        domains = domains[:1] * len(domains)
    distinct = list(dict.fromkeys(domains))
    return distinct, np.array([distinct.index(domain) for domain in domains], np.int64)


def _domains_matter(domains: set[str], transitions: Transitions, constraints: Constraints) -> bool:
    if len(domains) == 1 or constraints.max_devices is not None:
        return len(domains) > 1
    return any(cost.fixed_us or cost.us_per_mib for cost in transitions.copies.values())

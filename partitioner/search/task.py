"""What one search is asked for, the plans it knows, and what it returns."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from collage.partitioner.candidate import Plan
from collage.partitioner.graph.plan_check import execution_order
from collage.partitioner.search.candidate_arrays import CandidateArrays
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.search.exact_cover import classes
from collage.partitioner.search.milp import Floats, Ints
from collage.partitioner.search.transition import Transitions

Chosen = tuple[int, ...]
"""A plan as positions of candidates, ascending or in the order of the line."""

Method = Literal["line", "program", "fallback"]


@dataclass(frozen=True)
class ScoredPlan:
    """A plan with what it costs."""

    plan: Plan  # its partitions, in execution order
    candidates: tuple[int, ...]  # their positions in the candidates given to search, in the same order
    objective_us: float  # partitions and borders together, in microseconds


@dataclass(frozen=True)
class Statistics:
    """How a search went."""

    # shortest paths proven best, HiGHS, or (out of time) a plan found beforehand
    method: Method
    cuts: int  # rows that forbid cycles of waiting partitions
    seconds: float


@dataclass(frozen=True)
class Solution:
    """The best plans, the best first; at least one."""

    plans: tuple[ScoredPlan, ...]  # distinct ones
    bound_us: float  # no plan costs less
    optimal: bool  # True when the first plan is proven to be the best
    complete: bool  # True when there are proven to be no better plans than those given (or none other)
    statistics: Statistics  # how it was found

    def with_bound(self, bound_us: float) -> Solution:
        """The same plans with another bound (of a search with more candidates, for example)."""
        best = self.plans[0].objective_us
        return replace(self, bound_us=bound_us, optimal=bound_us >= best - tolerance_us(best))


def tolerance_us(cost_us: float) -> float:
    """Differences below this are rounding."""
    return 1e-6 * max(1.0, abs(cost_us))


@dataclass(frozen=True, eq=False)
class Task:
    """One search."""

    arrays: CandidateArrays
    transitions: Transitions
    constraints: Constraints
    k: int  # how many plans
    cost_us: Floats  # per candidate; infinite where it cannot be used
    deadline: float = math.inf  # on the monotonic clock

    def left_s(self) -> float | None:
        """Seconds until the deadline, at least 0; None without one."""
        return None if math.isinf(self.deadline) else max(0.0, self.deadline - time.monotonic())

    @cached_property
    def class_of_target(self) -> Ints:
        """Per target of the arrays its class; see `collage.partitioner.search.exact_cover`."""
        return classes(self.arrays, self.transitions, self.constraints)[1]

    @cached_property
    def separable(self) -> bool:
        """True when a plan's cost is a sum over its partitions and a constant, and nothing binds it."""
        limits = self.constraints
        bound = limits.max_partitions is not None or limits.budgets
        return not bound and not self.class_of_target.any()

    def own_costs(self, active: Ints) -> Floats:
        """Per active candidate its cost with the borders' cost that depends on it alone."""
        arrays, transitions = self.arrays, self.transitions
        targets = arrays.target_of[active]
        calls = np.array([transitions.partition_us(target) for target in arrays.targets])
        costs: Floats = self.cost_us[active] + calls[targets]
        borders = np.array([transitions.border_us.get(target, 0.0) for target in arrays.targets])
        if borders.any():
            costs += borders[targets] * arrays.input_count[active]
        return costs

    def undominated(self, active: Ints, costs: Floats) -> Ints:
        """Positions in `active`, ascending, of what may be in one of the k best plans.

        Of candidates with the same nodes and class, any k that are not worse in cost and budgets
        replace the others.
        """
        arrays = self.arrays
        kind = self.class_of_target[arrays.target_of[active]]
        key = arrays.group_of[active] * (len(arrays.targets) + 1) + kind
        order = np.lexsort((costs, key))
        amounts = [np.array(budget.amounts)[active][order] for budget in self.constraints.budgets]
        sorted_key = key[order]
        better = np.zeros(len(active), np.int64)
        for shift in range(1, len(arrays.targets)):
            same = sorted_key[shift:] == sorted_key[:-shift]
            for amount in amounts:
                same &= amount[:-shift] <= amount[shift:]
            better[shift:] += same
        return np.sort(order[better < self.k])

    def score(self, chosen: Iterable[int]) -> ScoredPlan:
        """The plan in execution order, with its cost."""
        positions = list(chosen)
        candidates = self.arrays.candidates
        sets = [candidates[c].nodes for c in positions]
        order = tuple(positions[p] for p in execution_order(self.arrays.index, sets))
        plan = Plan(tuple(candidates[c] for c in order))
        borders_us = self.transitions.plan_cost(self.arrays.index, plan.partitions)
        return ScoredPlan(plan, order, float(self.cost_us[list(order)].sum()) + borders_us)

    def allows(self, chosen: Sequence[int]) -> bool:
        """True when a plan keeps to what binds it as a whole."""
        limits = self.constraints
        if limits.max_partitions is not None and len(chosen) > limits.max_partitions:
            return False
        if limits.max_devices is not None:
            targets = {self.arrays.candidates[c].target for c in chosen}
            if len({self.transitions.domain(target) for target in targets}) > limits.max_devices:
                return False
        return all(
            sum(budget.amounts[c] for c in chosen) <= budget.limit * (1 + 1e-9)
            for budget in limits.budgets
        )


@dataclass
class KnownPlans:
    """Plans that can run and keep to the constraints."""

    task: Task
    plans: dict[frozenset[int], ScoredPlan] = field(default_factory=dict)

    def add(self, chosen: Iterable[int]) -> bool:
        """Add a plan whose partitions do not wait for each other; False when it breaks a limit."""
        positions = tuple(chosen)
        key = frozenset(positions)
        if key not in self.plans:
            if not self.task.allows(positions):
                return False
            self.plans[key] = self.task.score(positions)
        return True

    def add_all(self, plans: Iterable[Chosen]) -> None:
        for chosen in plans:
            self.add(chosen)

    def cost_us(self, chosen: Chosen) -> float:
        return self.plans[frozenset(chosen)].objective_us

    def limit_us(self) -> float:
        """What a plan may cost and still be wanted; infinite while fewer than k are known."""
        task = self.task
        if len(self.plans) < task.k:
            return math.inf
        return sorted(plan.objective_us for plan in self.plans.values())[task.k - 1]

    def start(self, active: Ints, taken: Sequence[Chosen]) -> Ints | None:
        """The best known plan that is none of those taken, as positions in `active`."""
        others = {frozenset(plan) for plan in taken}
        known = [key for key in self.plans if key not in others]
        for key in sorted(known, key=lambda key: self.plans[key].objective_us):
            found = np.flatnonzero(np.isin(active, np.array(list(key), np.int64)))
            if len(found) == len(key):
                return found
        return None

    def best(self, found: Sequence[Chosen]) -> tuple[ScoredPlan, ...]:
        """The k best: those found, filled up with what else is known."""
        keys = [frozenset(plan) for plan in found]
        others = [key for key in self.plans if key not in keys]
        others.sort(key=lambda key: self.plans[key].objective_us)
        keys += others[: max(0, self.task.k - len(keys))]
        return tuple(sorted((self.plans[key] for key in keys), key=lambda plan: plan.objective_us))

"""What one search is asked for, and the plans it knows."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from collage.partitioner.candidate import Plan
from collage.partitioner.graph.plan_check import execution_order
from collage.partitioner.search.candidate_arrays import CandidateArrays
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.search.exact_cover import classes
from collage.partitioner.search.milp import Floats, Ints
from collage.partitioner.search.solution import ScoredPlan
from collage.partitioner.search.transition import Transitions

Chosen = tuple[int, ...]
"""A plan as positions of candidates, ascending or in the order of the line."""


@dataclass(frozen=True, eq=False)
class Task:
    """One search.

    Args:
        structure: all candidates.
        transitions: what borders cost.
        constraints: what a plan must respect.
        k: how many plans.
        min_difference: how many partitions of each better plan a plan must do without.
        cost_us: per candidate; infinite where it cannot be used.
        deadline: on the monotonic clock.
    """

    structure: CandidateArrays
    transitions: Transitions
    constraints: Constraints
    k: int
    min_difference: int
    cost_us: Floats
    deadline: float = math.inf

    def left_s(self) -> float | None:
        """Seconds until the deadline, at least 0; None without one."""
        return None if math.isinf(self.deadline) else max(0.0, self.deadline - time.monotonic())

    @cached_property
    def class_of_target(self) -> Ints:
        """Per target of the structure its class; see `collage.partitioner.search.exact_cover`."""
        return classes(self.structure, self.transitions, self.constraints)[1]

    @cached_property
    def separable(self) -> bool:
        """True when a plan's cost is a sum over its partitions (and a constant), and nothing binds it."""
        limits = self.constraints
        bound = limits.max_partitions is not None or limits.budgets
        one_class = not self.class_of_target.any()
        return not bound and one_class and not any(self.transitions.pair_us.values())

    def own_costs(self, active: Ints) -> Floats:
        """Per active candidate its cost with what its borders cost whoever is on their other side."""
        structure, transitions = self.structure, self.transitions
        targets = structure.target_of[active]
        calls = np.array([transitions.partition_us(target) for target in structure.targets])
        costs: Floats = self.cost_us[active] + calls[targets]
        borders = np.array([transitions.border_us.get(target, 0.0) for target in structure.targets])
        if borders.any():
            costs += borders[targets] * structure.input_count[active]
        least = [transitions.least_pair_us(structure.targets, t) for t in structure.targets]
        if any(least):
            costs += np.array(least)[targets] * structure.private_input_count[active]
        return costs

    def undominated(self, active: Ints, costs: Floats) -> Ints:
        """Positions in `active`, ascending, of what may be in one of the k best plans.

        Of candidates with the same nodes and class, any k that are not worse in cost and budgets take
        the place of all others.
        """
        structure = self.structure
        kind = self.class_of_target[structure.target_of[active]]
        key = structure.group_of[active] * (len(structure.targets) + 1) + kind
        order = np.lexsort((costs, key))
        amounts = [np.array(budget.amounts)[active][order] for budget in self.constraints.budgets]
        sorted_key = key[order]
        better = np.zeros(len(active), np.int64)
        for shift in range(1, len(structure.targets)):
            same = sorted_key[shift:] == sorted_key[:-shift]
            for amount in amounts:
                same &= amount[:-shift] <= amount[shift:]
            better[shift:] += same
        return np.sort(order[better < self.k])

    def score(self, chosen: Iterable[int]) -> ScoredPlan:
        """The plan in execution order, with its cost."""
        positions = list(chosen)
        candidates = self.structure.candidates
        sets = [candidates[c].nodes for c in positions]
        order = tuple(positions[p] for p in execution_order(self.structure.index, sets))
        plan = Plan(tuple(candidates[c] for c in order))
        borders_us = self.transitions.plan_cost(self.structure.index, plan.partitions)
        return ScoredPlan(plan, order, float(self.cost_us[list(order)].sum()) + borders_us)

    def allows(self, chosen: Sequence[int]) -> bool:
        """True when a plan keeps to what binds it as a whole."""
        limits = self.constraints
        if limits.max_partitions is not None and len(chosen) > limits.max_partitions:
            return False
        if limits.max_devices is not None:
            targets = {self.structure.candidates[c].target for c in chosen}
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
        """Take in a plan whose partitions do not wait for each other; False when it breaks a limit."""
        positions = tuple(chosen)
        key = frozenset(positions)
        if key not in self.plans:
            if not self.task.allows(positions):
                return False
            self.plans[key] = self.task.score(positions)
        return True

    def add_all(self, plans: Iterable[Chosen]) -> None:
        """Take in those plans that keep to the constraints."""
        for chosen in plans:
            self.add(chosen)

    def cost_us(self, chosen: Chosen) -> float:
        """What a plan that was taken in costs."""
        return self.plans[frozenset(chosen)].objective_us

    def limit_us(self) -> float:
        """What a plan may cost and still be wanted; infinite while fewer than k are known."""
        task = self.task
        if len(self.plans) < task.k or (task.k > 1 and task.min_difference > 1):
            return math.inf
        return sorted(plan.objective_us for plan in self.plans.values())[task.k - 1]

    def start(self, active: Ints, taken: Sequence[Chosen], min_difference: int) -> Ints | None:
        """The best known plan that differs from those taken, as positions in `active`."""
        sets = [frozenset(plan) for plan in taken]
        for key in sorted(self.plans, key=lambda key: self.plans[key].objective_us):
            if all(_differs(key, other, min_difference) for other in sets):
                found = np.flatnonzero(np.isin(active, np.array(list(key), np.int64)))
                if len(found) == len(key):
                    return found
        return None

    def best(self, found: Sequence[Chosen]) -> tuple[ScoredPlan, ...]:
        """The k best: those found, filled up with what else is known."""
        task = self.task
        ranked = sorted(self.plans.items(), key=lambda item: item[1].objective_us)
        keys = [frozenset(plan) for plan in found]
        for key, _ in ranked:
            if len(keys) < task.k and all(_differs(key, other, task.min_difference) for other in keys):
                keys.append(key)
        return tuple(sorted((self.plans[key] for key in keys), key=lambda plan: plan.objective_us))


def _differs(plan: frozenset[int], better: frozenset[int], least: int) -> bool:
    return len(better - plan) >= min(least, len(better))

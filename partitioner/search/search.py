"""The cheapest plans: minimum-cost exact cover, with what borders cost, and a proof.

Three steps, each exact in what it claims:

1. shortest paths over the line (`shortest_path`): a first plan, and often already a proof;
2. the linear relaxation of the program (`exact_cover`), whose reduced costs tell which candidates
   cannot be in any plan as good as the best known;
3. the program with the rest. A solution whose partitions wait for each other is forbidden by cuts
   (`cycle_cuts`) and the program solved again; each further plan must differ from those before it.

A `Searcher` keeps what does not depend on costs, cuts included.

Invariants: a candidate without a cost is never chosen; every plan returned can run; `bound_us` is
proven even when the time ran out.

Source: exact cover with lazily added cuts is our own; RFC 0062 searches by Dijkstra
(`benchmarks.dijkstra`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from collage.partitioner.candidate import Candidate
from collage.partitioner.errors import NoPlanError, OutOfTimeError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.search.candidate_arrays import Bools, CandidateArrays
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.search.cycle_cuts import Cycle, cycles
from collage.partitioner.search.exact_cover import Cover
from collage.partitioner.search.infeasibility import Refusals, explain, explain_misfit
from collage.partitioner.search.milp import Floats, Ints, relax, solve
from collage.partitioner.search.shortest_path import (
    Paths,
    more_paths,
    price_bound,
    reduced_costs,
    shortest_paths,
)
from collage.partitioner.search.task import (
    Chosen,
    KnownPlans,
    Method,
    ScoredPlan,
    Solution,
    Statistics,
    Task,
    tolerance_us,
)
from collage.partitioner.search.transition import Transitions

__all__ = ["ScoredPlan", "Searcher", "Solution"]

_FREE_BORDERS = Transitions()
_UNBOUND = Constraints()

_FEW, _FEW_PER_NODE = 100, 1.5  # so many candidates, and so many per node, a first guess leaves
_FIRST_PER_NODE = 2  # so many candidates per node the relaxation begins with
_NEAR = 8  # so many plans per plan wanted are looked at near the relaxation's optimum
_ROUND = 1e-6  # shares this near to 0 or 1 are taken as such


class Searcher:
    """Searches one graph's candidates as often as their costs change; for one thread at a time.

    Args:
        candidates: convex, not empty and distinct.
        refusals: why a target has no candidate for a node, for messages.
    """

    def __init__(
        self, index: GraphIndex, candidates: Sequence[Candidate], refusals: Refusals | None = None
    ) -> None:
        self._arrays = CandidateArrays.build(index, candidates)
        self._refusals = refusals or {}
        self._cycles: dict[Cycle, None] = {}
        self._allowed: tuple[Constraints, Bools] | None = None

    def solve(
        self,
        cost_us: Sequence[float | None],
        *,
        transitions: Transitions = _FREE_BORDERS,
        constraints: Constraints = _UNBOUND,
        k: int = 1,
        time_limit_s: float | None = None,
        infeasible: Mapping[int, str] | None = None,
    ) -> Solution:
        """The k cheapest plans, fewer when there are no more.

        Args:
            cost_us: per candidate; None where it cannot be used.
            k: how many plans.
            time_limit_s: return the best found after so long, with its bound.
            infeasible: per candidate why it cannot be used, for messages.

        Raises:
            NoPlanError: no plan exists.
            OutOfTimeError: none was found in time.
            ConstraintError: a constraint fits nothing.
        """
        begin = time.monotonic()
        arrays = self._arrays
        costs = np.array([math.inf if cost is None else cost for cost in cost_us], float)
        active = np.flatnonzero(self._allowed_by(constraints) & np.isfinite(costs))
        if arrays.uncovered(active):
            said = explain(arrays, active, costs, constraints, self._refusals, infeasible or {})
            raise NoPlanError(said)
        deadline = math.inf if time_limit_s is None else begin + time_limit_s
        task = Task(arrays, transitions, constraints, k, costs, deadline)
        return _Search(task, self._cycles, begin).go(active)

    def _allowed_by(self, constraints: Constraints) -> Bools:
        if self._allowed is None or self._allowed[0] is not constraints:
            allowed = constraints.allowed(self._arrays.index, self._arrays.candidates)
            self._allowed = constraints, np.array(allowed, np.bool_)
        return self._allowed[1]


class _Search:
    """One search; its methods are the steps of the module's docstring.

    Args:
        task: what is searched.
        known_cycles: of waiting partitions; new ones are added.
        begin: on the monotonic clock.
    """

    def __init__(self, task: Task, known_cycles: dict[Cycle, None], begin: float) -> None:
        self._task = task
        self._cycles = known_cycles
        self._begin = begin
        self._pool = KnownPlans(task)
        self._base_us = -math.inf
        self._bound_us = 0.0

    def go(self, active: Ints) -> Solution:
        task = self._task
        costs = task.own_costs(active)
        kept = task.undominated(active, costs)
        active, costs = active[kept], costs[kept]
        paths = shortest_paths(task.arrays, active, costs, task.k)
        self._pool.add_all(paths.plans)
        if task.separable and self._proven(paths, active, costs):
            return self._solution(paths.plans, "line", proven=len(paths.plans))
        self._pool.add_all(more_paths(task, active, costs))
        if paths.plans:
            self._bound_us = max(0.0, price_bound(task.arrays, active, costs, paths.distance))
        spare, found = self._relax(active, costs, paths.distance)
        if len(found) == task.k:
            return self._solution(found, "program", proven=1)
        plans, proven = found, 0
        for limit in self._limits(active, spare):
            here = np.flatnonzero(self._base_us + spare <= limit + tolerance_us(limit))
            plans, proven = self._branch(active[here], costs[here], list(found), limit)
            best = [plan for plan in plans[:proven] if self._pool.cost_us(plan) <= limit]
            if len(best) == task.k or task.left_s() == 0.0:
                proven = len(best)
                break
            found = best
        return self._solution(plans, "program", proven)

    def _proven(self, paths: Paths, active: Ints, costs: Floats) -> bool:
        """True when no candidate of several runs can be in a plan better than these paths."""
        task = self._task
        if not paths.plans:
            return False
        several = task.arrays.run_count[active] > 1
        if not several.any():
            return True
        if len(paths.plans) < task.k:
            return False
        spare = reduced_costs(task.arrays, active, costs, paths.distance)
        runs_only = spare[~several].min(initial=0.0) >= -tolerance_us(paths.costs[0])
        return bool(runs_only and spare[several].min() >= paths.costs[-1] - paths.costs[0])

    def _cover(self, active: Ints, costs: Floats) -> Cover:
        cover = Cover(self._task.arrays, active, costs, self._task.transitions, self._task.constraints)
        for cycle in self._cycles:
            cover.add_cycle(cycle)
        return cover

    def _relax(self, active: Ints, costs: Floats, distance: Floats) -> tuple[Floats, list[Chosen]]:
        """What each candidate costs over the relaxation's optimum; the best plan if that is one."""
        task = self._task
        cover = self._cover(active, costs)
        result = relax(cover.program, self._promising(active, costs, distance), task.left_s())
        if result.values is None or result.duals is None:
            return np.zeros(len(active)), []
        self._base_us = result.bound
        self._bound_us = max(self._bound_us, result.bound)
        spare = np.maximum(result.duals[: len(active)], 0.0)
        shares = result.values[: len(active)]
        if np.all(np.minimum(shares, 1 - shares) < _ROUND):
            chosen = tuple(active[shares > 0.5].tolist())
            if not self._cycles_of(chosen) and self._pool.add(chosen):
                return spare, [chosen]
        return spare, []

    def _promising(self, active: Ints, costs: Floats, distance: Floats) -> Ints:
        """Positions in `active` of what the relaxation begins with: cheap ones, and plans known."""
        arrays = self._task.arrays
        few = _FIRST_PER_NODE * arrays.node_count
        if few >= len(active):
            return np.arange(len(active))
        spare = reduced_costs(arrays, active, costs, distance)
        known = np.array([c for plan in self._pool.plans for c in plan], np.int64)
        cheap = np.isin(active, known)
        cheap[np.argpartition(spare, few)[:few]] = True
        return np.flatnonzero(cheap)

    def _limits(self, active: Ints, spare: Floats) -> Iterator[float]:
        """Costs up to which to look for plans: guesses that leave few candidates, then what is known.

        Plans that use what a limit leaves out cost more than the limit; so plans that cost no more are
        the best of all.
        """
        task = self._task
        # Plans that are cheap by reduced costs are near the optimum; they lower the limit.
        self._pool.add_all(shortest_paths(task.arrays, active, spare, _NEAR * task.k).plans)
        few = _FEW + int(_FEW_PER_NODE * task.arrays.node_count)
        while few < len(spare) and math.isfinite(self._base_us):
            guess = self._base_us + float(np.partition(spare, few)[few])
            if guess >= self._pool.limit_us():
                break
            yield guess
            few *= 2
        yield self._pool.limit_us()

    def _branch(
        self, active: Ints, costs: Floats, plans: list[Chosen], limit_us: float
    ) -> tuple[list[Chosen], int]:
        """Solve for one plan after those found; returns all of them and how many are proven.

        Args:
            active: all candidates that can be in a plan that costs no more than the limit.
            costs: of those.
            plans: known to be the best.
            limit_us: beyond it nothing is proven.
        """
        task = self._task
        cover = self._cover(active, costs)
        for chosen in plans:
            cover.exclude(chosen)
        while len(plans) < task.k:
            start = self._pool.start(active, plans)
            result = solve(cover.program, start=start, time_limit_s=task.left_s())
            if not plans:
                self._bound_us = max(self._bound_us, min(result.bound, limit_us))
            if result.values is None:
                return plans, task.k if result.optimal else len(plans)
            chosen = tuple(active[result.values[: len(active)] > 0.5].tolist())
            waiting = self._cycles_of(chosen)
            for cycle in waiting:
                cover.add_cycle(cycle)
            if not waiting and not self._pool.add(chosen):
                # Within the solver's tolerance of a budget, yet over it.
                cover.exclude(chosen)
            elif not waiting:
                if not result.optimal:
                    return plans, len(plans)
                plans.append(chosen)
                cover.exclude(chosen)
            if task.left_s() == 0.0:
                return plans, len(plans)
        return plans, task.k

    def _cycles_of(self, chosen: Chosen) -> list[Cycle]:
        """Cycles among the chosen, remembered."""
        arrays = self._task.arrays
        found = cycles(arrays.index, [arrays.candidates[c].nodes for c in chosen])
        self._cycles.update(dict.fromkeys(found))
        return found

    def _solution(self, found: Sequence[Chosen], method: Method, proven: int) -> Solution:
        task = self._task
        plans = self._pool.best(found)
        if not plans:
            if proven == 0:
                raise OutOfTimeError("the time ran out before any plan was found; allow more time")
            raise NoPlanError(explain_misfit(task.constraints))
        best_us = plans[0].objective_us
        optimal = proven > 0
        return Solution(
            plans=plans,
            bound_us=best_us if optimal else min(self._bound_us, best_us),
            optimal=optimal,
            complete=proven >= min(task.k, len(plans)) if method == "line" else proven >= task.k,
            statistics=Statistics(
                method=method if found else "fallback",
                cuts=len(self._cycles),
                seconds=time.monotonic() - self._begin,
            ),
        )

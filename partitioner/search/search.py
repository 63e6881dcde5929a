"""The cheapest plans: minimum-cost exact cover, with what borders cost, and a proof.

Three steps, each exact in what it claims:

1. shortest ways over the line (`collage.partitioner.search.shortest_path`): a first plan, and often already a proof;
2. the linear relaxation of the program (`collage.partitioner.search.exact_cover`), whose reduced costs tell which candidates
   cannot be in any plan as good as the best known;
3. the program with the rest. A solution whose partitions wait for each other is forbidden by cuts
   (`collage.partitioner.search.cycle_cuts`) and the program solved again; each further plan demands to differ from those
   before it.

A `Searcher` keeps what does not depend on costs, cuts included, so the second search of the same
candidates costs only its solution.

Invariants: a candidate without a cost is never chosen; every plan returned can run; `bound_us` is proven
even when the time ran out.

Source: exact cover with lazily added cuts is our own; RFC 0062 searches by Dijkstra (see
`benchmarks.search_scaling.dijkstra`).
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
from collage.partitioner.search.cycle_cuts import Ring, rings
from collage.partitioner.search.exact_cover import Cover
from collage.partitioner.search.infeasibility import Refusals, explain, explain_misfit
from collage.partitioner.search.milp import Floats, Ints, relax, solve
from collage.partitioner.search.shortest_path import (
    Ways,
    more_ways,
    price_bound,
    reduced_costs,
    shortest_ways,
)
from collage.partitioner.search.solution import Method, ScoredPlan, Solution, Statistics, tolerance_us
from collage.partitioner.search.task import Chosen, Pool, Task
from collage.partitioner.search.transition import Transitions

__all__ = ["ScoredPlan", "Searcher", "Solution", "Statistics", "search"]

_FREE_BORDERS = Transitions()
_UNBOUND = Constraints()

_FEW, _FEW_PER_NODE = 100, 1.5
"""So many candidates, and so many per node, a first guess leaves."""

_FIRST_PER_NODE = 2
"""So many candidates per node the relaxation begins with."""

_NEAR = 8
"""So many plans per plan wanted are looked at near the relaxation's optimum."""

_ROUND = 1e-6
"""Shares this near to 0 or 1 are taken as such."""


def search(
    index: GraphIndex,
    candidates: Sequence[Candidate],
    cost_us: Sequence[float | None],
    *,
    transitions: Transitions = _FREE_BORDERS,
    constraints: Constraints = _UNBOUND,
    k: int = 1,
    time_limit_s: float | None = None,
    refusals: Refusals | None = None,
    infeasible: Mapping[int, str] | None = None,
    min_difference: int = 1,
) -> Solution:
    """The k cheapest plans; see `Searcher.solve` for the arguments.

    Raises:
        NoPlanError: no plan exists.
        ConstraintError: a constraint fits nothing.
    """
    return Searcher(index, candidates, refusals).solve(
        cost_us,
        transitions=transitions,
        constraints=constraints,
        k=k,
        time_limit_s=time_limit_s,
        infeasible=infeasible,
        min_difference=min_difference,
    )


class Searcher:
    """Searches one graph's candidates again and again while their costs become known.

    Not safe for use by several threads at once.

    Args:
        index: the graph.
        candidates: convex, not empty and distinct.
        refusals: why a target has no candidate for a node, for messages.
    """

    def __init__(
        self, index: GraphIndex, candidates: Sequence[Candidate], refusals: Refusals | None = None
    ) -> None:
        self._structure = CandidateArrays.build(index, candidates)
        self._refusals = refusals or {}
        self._rings: dict[Ring, None] = {}
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
        min_difference: int = 1,
    ) -> Solution:
        """The k cheapest plans.

        Args:
            cost_us: per candidate; None where it cannot be used.
            transitions: what borders cost.
            constraints: what a plan must respect.
            k: how many plans; fewer are returned when there are no more.
            time_limit_s: return the best found after so long, with its bound.
            infeasible: per candidate why it cannot be used, for messages.
            min_difference: how many partitions of each better plan a plan must do without (all of one
                that has fewer).

        Raises:
            NoPlanError: no plan exists.
            OutOfTimeError: none was found in time.
            ConstraintError: a constraint fits nothing.
        """
        begin = time.monotonic()
        structure = self._structure
        costs = np.array([math.inf if cost is None else cost for cost in cost_us], float)
        active = np.flatnonzero(self._allowed_by(constraints) & np.isfinite(costs))
        if structure.uncovered(active):
            said = explain(structure, active, costs, constraints, self._refusals, infeasible or {})
            raise NoPlanError(said)
        deadline = math.inf if time_limit_s is None else begin + time_limit_s
        task = Task(structure, transitions, constraints, k, min_difference, costs, deadline)
        return _Run(task, self._rings, begin).go(active)

    def _allowed_by(self, constraints: Constraints) -> Bools:
        if self._allowed is None or self._allowed[0] is not constraints:
            allowed = constraints.allowed(self._structure.index, self._structure.candidates)
            self._allowed = constraints, np.array(allowed, np.bool_)
        return self._allowed[1]


class _Run:
    """One search; its methods are the steps of the module's docstring.

    Args:
        task: what is searched.
        rings: known rings of waiting partitions; new ones are added.
        begin: on the monotonic clock.
    """

    def __init__(self, task: Task, rings_known: dict[Ring, None], begin: float) -> None:
        self._task = task
        self._rings = rings_known
        self._begin = begin
        self._pool = Pool(task)
        self._base_us = -math.inf
        self._bound_us = 0.0
        self._columns = self._rows = self._solves = 0

    def go(self, active: Ints) -> Solution:
        task = self._task
        costs = task.own_costs(active)
        kept = task.undominated(active, costs)
        active, costs = active[kept], costs[kept]
        ways = shortest_ways(task.structure, active, costs, task.k)
        self._pool.add_all(ways.plans)
        if task.separable and self._proven(ways, active, costs):
            return self._solution(ways.plans, "line", len(active), proven=len(ways.plans))
        self._pool.add_all(more_ways(task, active, costs))
        if ways.plans:
            self._bound_us = max(0.0, price_bound(task.structure, active, costs, ways.distance))
        spare, found = self._relax(active, costs, ways.distance)
        if len(found) == task.k:
            return self._solution(found, "program", len(active), proven=1)
        plans, proven = found, 0
        for limit in self._limits(active, spare):
            here = np.flatnonzero(self._base_us + spare <= limit + tolerance_us(limit))
            plans, proven = self._branch(active[here], costs[here], list(found), limit)
            best = [plan for plan in plans[:proven] if self._pool.cost_us(plan) <= limit]
            if len(best) == task.k or task.left_s() == 0.0:
                proven = len(best)
                break
            found = best
        return self._solution(plans, "program", len(active), proven)

    def _proven(self, ways: Ways, active: Ints, costs: Floats) -> bool:
        """True when no candidate of several runs can be in a plan better than these ways."""
        task = self._task
        if not ways.plans or (task.k > 1 and task.min_difference > 1):
            return False
        several = task.structure.run_count[active] > 1
        if not several.any():
            return True
        if len(ways.plans) < task.k:
            return False
        spare = reduced_costs(task.structure, active, costs, ways.distance)
        runs_only = spare[~several].min(initial=0.0) >= -tolerance_us(ways.costs[0])
        return bool(runs_only and spare[several].min() >= ways.costs[-1] - ways.costs[0])

    def _cover(self, active: Ints, costs: Floats) -> Cover:
        cover = Cover(
            self._task.structure, active, costs, self._task.transitions, self._task.constraints
        )
        for ring in self._rings:
            cover.add_ring(ring)
        return cover

    def _relax(self, active: Ints, costs: Floats, distance: Floats) -> tuple[Floats, list[Chosen]]:
        """What each candidate costs more than the relaxation's optimum; the best plan if that is one."""
        task = self._task
        cover = self._cover(active, costs)
        self._note(cover)
        result = relax(cover.program, self._promising(active, costs, distance), task.left_s())
        if result.values is None or result.duals is None:
            return np.zeros(len(active)), []
        self._base_us = result.bound
        self._bound_us = max(self._bound_us, result.bound)
        spare = np.maximum(result.duals[: len(active)], 0.0)
        shares = result.values[: len(active)]
        if np.all(np.minimum(shares, 1 - shares) < _ROUND):
            chosen = tuple(active[shares > 0.5].tolist())
            if not self._rings_of(chosen) and self._pool.add(chosen):
                return spare, [chosen]
        return spare, []

    def _promising(self, active: Ints, costs: Floats, distance: Floats) -> Ints:
        """Positions in `active` of what the relaxation begins with: cheap ones, and plans known."""
        structure = self._task.structure
        few = _FIRST_PER_NODE * structure.node_count
        if few >= len(active):
            return np.arange(len(active))
        spare = reduced_costs(structure, active, costs, distance)
        known = np.array([c for plan in self._pool.plans for c in plan], np.int64)
        cheap = np.isin(active, known)
        cheap[np.argpartition(spare, few)[:few]] = True
        return np.flatnonzero(cheap)

    def _limits(self, active: Ints, spare: Floats) -> Iterator[float]:
        """Costs up to which to look for plans: guesses that leave few candidates, then what is known.

        Plans that use what a limit leaves out cost more than the limit; so when the plans found cost no
        more, they are the best of all.
        """
        task = self._task
        # What is cheap by reduced costs is near the optimum; it lowers the limit.
        self._pool.add_all(shortest_ways(task.structure, active, spare, _NEAR * task.k).plans)
        few = _FEW + int(_FEW_PER_NODE * task.structure.node_count)
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
            cover.add_difference(chosen, task.min_difference)
        while len(plans) < task.k:
            self._note(cover)
            start = self._pool.start(active, plans, task.min_difference)
            result = solve(cover.program, start=start, time_limit_s=task.left_s())
            self._solves += 1
            if not plans:
                self._bound_us = max(self._bound_us, min(result.bound, limit_us))
            if result.values is None:
                return plans, task.k if result.optimal else len(plans)
            chosen = tuple(active[result.values[: len(active)] > 0.5].tolist())
            waiting = self._rings_of(chosen)
            for ring in waiting:
                cover.add_ring(ring)
            if not waiting and not self._pool.add(chosen):
                # Within the solver's tolerance of a budget, yet over it.
                cover.add_difference(chosen, 1)
            elif not waiting:
                if not result.optimal:
                    return plans, len(plans)
                plans.append(chosen)
                cover.add_difference(chosen, task.min_difference)
            if task.left_s() == 0.0:
                return plans, len(plans)
        return plans, task.k

    def _rings_of(self, chosen: Chosen) -> list[Ring]:
        """Rings among the chosen, remembered."""
        structure = self._task.structure
        found = rings(structure.index, [structure.candidates[c].nodes for c in chosen])
        self._rings.update(dict.fromkeys(found))
        return found

    def _note(self, cover: Cover) -> None:
        self._columns = max(self._columns, cover.program.columns)
        self._rows = max(self._rows, cover.program.rows)

    def _solution(
        self, found: Sequence[Chosen], method: Method, candidates: int, proven: int
    ) -> Solution:
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
                candidates=candidates,
                columns=self._columns,
                rows=self._rows,
                cuts=len(self._rings),
                solves=self._solves,
                seconds=time.monotonic() - self._begin,
            ),
        )

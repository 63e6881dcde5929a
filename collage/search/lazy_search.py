"""Search that measures only what its solutions need.

The program is solved with what is known: measured costs as they are, unknown ones as optimistic
estimates. What the best plan uses and nobody has measured is measured; then it is solved again. A wrong
optimistic estimate only makes a plan look better than it is, so measuring finds it out. The loop ends in one of
three cases: the best plan is measured; its estimate is not worth a measurement beside the best plan known; many
measurements have improved nothing. Source: branch and bound with measurements as costs.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from collage.costs.cost_source import CostSource
from collage.costs.estimates import Estimates
from collage.events import Event, Listener
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.cost import Infeasible, Measured
from collage.partitioner.errors import NoPlanError, OutOfTimeError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.search.search import ScoredPlan, Searcher, Solution
from collage.partitioner.search.transition import Transitions
from collage.partitioner.target import Target
from collage.search.blocks import cheapest_cover, unions
from collage.search.corrections import NO_CORRECTIONS, Corrections

# A prediction closer than this to the best known plan is below what end-to-end timing can tell apart.
WORTH_MEASURING = 0.005
# At most so many partitions first, and how many costs in a row that bring no better plan are enough there. With one
# patience for all, wrong estimates of the coarsest plans would use it up, and no others would be looked at.
_STAGES: tuple[tuple[int | None, int], ...] = ((3, 8), (6, 16), (None, 16))
_BETTER = 0.001
# A region may well take this share of what its target's profile says.
_PLAUSIBLE = 0.7
# Plans to run before their partitions are measured: the best of at most so many each.
_TO_EXPLORE = (2, 3, 4, 6)
# So long each search may take however late it is, and twice as long each measurement.
_LEAST_S = 1.0
# Each search may measure for this share of the time that is left: the rest is for timing what it finds.
_SHARE_OF_TIME = 0.25


class LazySearch:
    """Searches one model's candidates, measuring on demand.

    Args:
        index: the graph.
        candidates: everything that may be used.
        costs: where costs come from.
        estimates: optimistic bounds for what is unknown.
        transitions: what borders cost.
        constraints: what a plan must respect.
        deadline_s: `time.monotonic()` after which nothing more is measured; None for never.
        most_regions: how many regions of this model may be known before no more are measured, those
            that the team measured before included; None for no limit. So a model that was tuned
            needs nothing new, and an interrupted tuning goes on.
        listener: is told about every solution.
        blocks: disjoint regions of each target, to be looked at whatever profiles say of them.
        give_up_s: `time.monotonic()` after which a search that knows no plan ends; infinite for never.
    """

    def __init__(
        self,
        index: GraphIndex,
        candidates: CandidateSet,
        costs: CostSource,
        estimates: Estimates,
        transitions: Transitions,
        constraints: Constraints,
        deadline_s: float | None,
        listener: Listener,
        most_regions: int | None = None,
        blocks: Sequence[Candidate] = (),
        give_up_s: float = math.inf,
    ) -> None:
        self._give_up_s = give_up_s
        self._most_regions = most_regions
        self._index = index
        self.candidates = candidates
        self._costs = costs
        self._estimates = estimates
        self._transitions = self._given_transitions = transitions
        self._constraints = constraints
        self._by_limit: dict[int | None, Constraints] = {}
        self._targets = {candidate.target for candidate in candidates.candidates}
        self._searcher = Searcher(index, candidates.candidates, candidates.refusals)
        self._deadline_s = self._until_s = deadline_s
        self._listener = listener
        self._learned: dict[tuple[int, Target], float] = {}
        self._plausible: dict[tuple[int, Target], float] = {}
        self._corrections = NO_CORRECTIONS
        self._best_us, self._patience, self._idle = float("inf"), 0, 0
        self._blocks = blocks

    @property
    def out_of_time(self) -> bool:
        """True when the deadline has passed."""
        return self._deadline_s is not None and time.monotonic() >= self._deadline_s

    @property
    def _gives_up(self) -> bool:
        """True when not even a first plan is to be looked for."""
        return time.monotonic() >= self._give_up_s

    @property
    def spent(self) -> bool:
        """True when nothing more is to be measured: the time is up, or enough regions are known."""
        if self._until_s is not None and time.monotonic() >= self._until_s:
            return True
        if self._most_regions is None:
            return False
        regions = (c for c in self.candidates.candidates if c.nodes != self._index.all_nodes)
        known = {self._costs.key(c).digest for c in regions if self._is_measured(c)}
        return len(known) >= self._most_regions

    def _correct(self, corrections: Corrections) -> None:
        """Use these from now on."""
        self._corrections = corrections
        given = self._given_transitions
        raised = {target: us + corrections.border_us for target, us in given.border_us.items()}
        self._transitions = replace(given, border_us=raised)

    def price_us(self, candidate: Candidate, measured_only: bool = False) -> float | None:
        """The cost that the search uses for a candidate; None when it cannot be used."""
        corrected = self._corrections.partition_us.get((candidate.nodes, candidate.target))
        if corrected is not None:
            return corrected
        cost = self._costs.cost(candidate)
        if isinstance(cost, Measured):
            return min(cost.latency_us, self._plausible_us(candidate))
        if isinstance(cost, Infeasible) or measured_only:
            return None
        return max(self._estimates.bound_us(candidate.nodes, candidate.target), 0.01)

    def _plausible_us(self, candidate: Candidate) -> float:
        """What a region takes at most, by what is known of others on its target.

        Each was measured at a moment of its own, of which one may be half as fast as another. A region
        is not slower than one that holds it, nor than its parts took one after the other in a running
        plan.
        """
        key = (candidate.nodes, candidate.target)
        if key in self._plausible:
            return self._plausible[key]
        larger = [
            us
            for (nodes, target), us in self._learned.items()
            if target == candidate.target
            and nodes != candidate.nodes
            and nodes & candidate.nodes == candidate.nodes
        ]
        parts = {
            nodes: us
            for (nodes, target), us in self._corrections.partition_us.items()
            if target == candidate.target and nodes & ~candidate.nodes == 0
        }
        self._plausible[key] = min([*larger, cheapest_cover(candidate.nodes, parts)])
        return self._plausible[key]

    def predict_us(self, plan: Plan, corrections: Corrections) -> float:
        """What a plan would take by all that is known; infinite where that says nothing.

        Within an accuracy budget it says nothing: the fastest by prediction errs most.
        """
        self._correct(corrections)
        if self._constraints.budgets or not set(plan.targets) <= self._targets:
            return float("inf")
        prices = [self.price_us(partition) for partition in plan.partitions]
        known = [price for price in prices if price is not None]
        if len(known) < len(prices):
            return float("inf")
        return sum(known) + self._transitions.plan_cost(self._index, plan.partitions)

    def is_known(self, candidate: Candidate) -> bool:
        """True when a candidate was measured, in a running plan or alone, or found infeasible."""
        key = (candidate.nodes, candidate.target)
        return key in self._corrections.partition_us or self._is_measured(candidate)

    def _is_measured(self, candidate: Candidate) -> bool:
        return isinstance(self._costs.cost(candidate), (Measured, Infeasible))

    def solve(self, k: int = 1, measured_only: bool = False, most: int | None = None) -> Solution:
        """Solve with what is known now.

        Args:
            k: how many plans.
            measured_only: leave out what was not measured.
            most: at most so many partitions, beside what the caller's constraints say.

        Raises:
            NoPlanError: nothing covers the graph.
            OutOfTimeError: no plan was found in time.
        """
        candidates = self.candidates.candidates
        solve = partial(
            self._searcher.solve,
            [self.price_us(candidate, measured_only) for candidate in candidates],
            transitions=self._transitions,
            constraints=self._limited(most),
            k=k,
            infeasible=self._failures(),
        )
        until_s = self._until_s
        limit_s = None if until_s is None else max(_LEAST_S, until_s - time.monotonic())
        try:
            return solve(time_limit_s=limit_s)
        except OutOfTimeError:
            left_s = self._give_up_s - time.monotonic()  # a late plan is better than none
            if left_s <= 0:
                raise
            return solve(time_limit_s=None if math.isinf(left_s) else left_s)

    def _limited(self, most: int | None) -> Constraints:
        if most not in self._by_limit:
            self._by_limit[most] = _at_most(self._constraints, most)
        return self._by_limit[most]

    def _failures(self) -> dict[int, str]:
        costs = ((i, self._costs.cost(c)) for i, c in enumerate(self.candidates.candidates))
        return {i: cost.reason for i, cost in costs if isinstance(cost, Infeasible)}

    def plans_of_blocks(self, corrections: Corrections) -> list[ScoredPlan]:
        """The best plans by the blocks that were timed in turn."""
        self._correct(corrections)
        taken_us = corrections.partition_us
        prices = unions(self._index, self.candidates.candidates, self._blocks, taken_us)
        searcher, constraints = self._among(list(prices))

        def solve(most: int) -> Solution:
            limited = _at_most(constraints, most)
            return searcher.solve(
                list(prices.values()), transitions=self._transitions, constraints=limited
            )

        return _of_each_size(solve)

    def plans_by_estimates(self, corrections: Corrections) -> list[ScoredPlan]:
        """The best plans by all that is known of partitions and, optimistically, of nodes."""
        self._correct(corrections)
        self._recall()
        return _of_each_size(lambda most: self.solve(most=most))

    def run(self, k: int, incumbent_us: float, corrections: Corrections = NO_CORRECTIONS) -> Solution:
        """Measure lazily until the best plan is known, then the `k` best as far as it pays.

        Plans of few partitions come first: they are most of what wins, and knowing them early makes the
        best plan so far a good one whenever the time ends.

        Args:
            k: how many plans to return.
            incumbent_us: cost of the best plan that is known already; infinite if none is.
            corrections: what comparisons of whole plans say.

        Returns:
            The `k` best plans whose every partition was measured; its bound is the optimistic one.
        """
        self._correct(corrections)
        if self._deadline_s is not None:
            now_s = time.monotonic()
            self._until_s = now_s + _SHARE_OF_TIME * max(0.0, self._deadline_s - now_s)
        self._recall()
        self._doubt_profiles(incumbent_us)
        bound_us = 0.0
        for most, patience in _STAGES:
            self._best_us, self._patience, self._idle = float("inf"), patience, 0
            bound_us = self._explore(most, incumbent_us)
        known = self.solve(k, measured_only=True)
        return known.with_bound(min(bound_us, known.bound_us))

    def _explore(self, most: int | None, incumbent_us: float) -> float:
        """Measure until the best plan of at most so many partitions is known; returns its bound."""
        try:
            return self._pursue(partial(self.solve, most=most), incumbent_us)
        except NoPlanError as error:
            if most is None or isinstance(error, OutOfTimeError):
                raise
            return 0.0  # it takes more partitions than that to cover the graph at all

    def _doubt_profiles(self, incumbent_us: float) -> None:
        """Measure blocks of a few targets, where they could be much faster than their profiles say.

        A candidate that is slow by its profile would never be measured. A profile that was taken at a slow moment of
        the machine would hide for good where its target is quick.
        """
        blocks = self._blocks
        if not blocks:
            return
        searcher, constraints = self._among(blocks)

        def solve() -> Solution:
            prices = [self.price_us(block) for block in blocks]
            doubted = [
                price if price is None or self.is_known(block) else price * _PLAUSIBLE
                for price, block in zip(prices, blocks, strict=True)
            ]
            return searcher.solve(doubted, transitions=self._transitions, constraints=constraints)

        with contextlib.suppress(NoPlanError):
            doubtful = sum(not self.is_known(block) for block in blocks)
            self._best_us, self._patience, self._idle = float("inf"), _STAGES[0][1] + doubtful, 0
            self._pursue(solve, incumbent_us)

    def _among(self, candidates: Sequence[Candidate]) -> tuple[Searcher, Constraints]:
        """A search among some of the candidates."""
        budgets = (b.among(self.candidates.candidates, candidates) for b in self._constraints.budgets)
        return Searcher(self._index, candidates), replace(self._constraints, budgets=tuple(budgets))

    def _pursue(self, solve: Callable[[], Solution], incumbent_us: float) -> float:
        """Measure what the best plan lacks until it is known or not worth it; returns its bound."""
        while True:
            solution = solve()
            best = solution.plans[0]
            known_us = min(incumbent_us, self._cheapest_known_us())
            unknown = self._unknown(best)
            self._tell(best, min(solution.bound_us, known_us), known_us, len(unknown))
            if not unknown or best.objective_us >= known_us * (1 - WORTH_MEASURING):
                return solution.bound_us
            if known_us < self._best_us * (1 - _BETTER):
                self._best_us, self._idle = known_us, 0
            if (self.spent or self._idle >= self._patience) and known_us < float("inf"):
                return solution.bound_us
            if self._gives_up:
                raise OutOfTimeError("the time ran out before any plan was found; allow more time")
            self._idle += len(unknown)
            self._costs.measure(unknown, self._stop(known_us), self._limit_s(known_us))
            list(map(self._learn, unknown))

    def _recall(self) -> None:
        """Take in what the team knows already, so that a model tuned before needs nothing new."""
        self._costs.recall(self.candidates.candidates)
        self._estimates.expect(self._costs.expected_us(self.candidates.candidates))
        self._plausible.clear()
        list(map(self._learn, self.candidates.candidates))

    def _learn(self, candidate: Candidate) -> None:
        cost = self._costs.cost(candidate)
        key = (candidate.nodes, candidate.target)
        measured_us = cost.latency_us if isinstance(cost, Measured) else None
        latency_us = self._corrections.partition_us.get(key, measured_us)
        if latency_us is not None and self._learned.get(key) != latency_us:
            self._learned[key] = latency_us
            self._plausible.clear()
            self._estimates.learn_region(candidate.target, candidate.nodes, latency_us)

    def _stop(self, known_us: float) -> Callable[[], bool]:
        # Without any plan a passed deadline waits for one for a while.
        return lambda: self._gives_up or (self.spent and known_us < float("inf"))

    def _limit_s(self, known_us: float) -> float | None:
        """Seconds for each measurement, so that it ends in time; without any plan there is time until the end."""
        end_s = self._give_up_s if known_us == float("inf") else self._deadline_s
        left_s = (math.inf if end_s is None else end_s) - time.monotonic()
        return None if math.isinf(left_s) else max(_LEAST_S, left_s / 2)

    def _unknown(self, plan: ScoredPlan) -> list[Candidate]:
        found = [c for c in plan.plan.partitions if not self.is_known(c)]
        return sorted(found, key=lambda c: -self._estimates.bound_us(c.nodes, c.target))

    def _cheapest_known_us(self) -> float:
        try:
            return self.solve(measured_only=True).plans[0].objective_us
        except NoPlanError:
            return float("inf")

    def _tell(self, plan: ScoredPlan, bound_us: float, known_us: float, unknown: int) -> None:
        best = "none yet" if known_us == float("inf") else f"{known_us:.0f} µs"
        self._listener(
            Event(
                "search",
                f"best known plan {best}, best possible {bound_us:.0f} µs, {unknown} costs to measure",
                data={
                    "known_us": None if math.isinf(known_us) else known_us,
                    "bound_us": bound_us,
                    "partitions": len(plan.plan.partitions),
                    "unknown": unknown,
                },
            )
        )


def _of_each_size(solve: Callable[[int], Solution]) -> list[ScoredPlan]:
    """The best plans of few and of more partitions, where there are any."""
    found = []
    for most in _TO_EXPLORE:
        with contextlib.suppress(NoPlanError):
            found.append(solve(most).plans[0])
    return found


def _at_most(constraints: Constraints, most: int | None) -> Constraints:
    """The same with at most so many partitions."""
    limits = [limit for limit in (constraints.max_partitions, most) if limit is not None]
    return replace(constraints, max_partitions=min(limits, default=None))

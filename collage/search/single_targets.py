"""Every target alone on the whole graph: the baselines, and what all estimates start from."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from collage.cost_db.costs.row import CostRow
from collage.costs.cost_source import CostSource
from collage.costs.estimates import Estimates
from collage.deadline import NO_DEADLINE, Deadline
from collage.learning.advice import NO_ADVICE, Advice
from collage.partitioner.candidate import Candidate, Plan, bits
from collage.partitioner.cost import Infeasible, Measured, Unknown
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.rules.target_spec import TargetSpec
from collage.partitioner.target import Target
from collage.search.blocks import blocks

# A runtime may take a whole model of which our tables refuse it some nodes, which costs one attempt; of more it takes none.
_MOST_REFUSED = 1 / 4
# The first timings of all targets may take such a share of the time, in equal parts; less than so many seconds are none.
_FIRST_SHARE, _LEAST_FIRST_S = 0.7, 1.5
# A target that is further behind as a whole is not looked into without a profile.
_WORTH_PROBING = 3.0


def may_take_all(
    index: GraphIndex, specs: Sequence[TargetSpec], candidates: CandidateSet
) -> list[Target]:
    """Targets that refuse so few nodes that they are tried on the whole model all the same.

    Only where nothing but our table of operators says no. A rule of the user's is kept to, and so is a target's
    refusal of a region.
    """
    refused = Counter(target for _, target in candidates.refusals)
    return [
        spec.target
        for spec in specs
        if 0 < refused[spec.target] <= _MOST_REFUSED * len(index.nodes)
        and spec.rule is None
        and spec.refuse_region(index, index.all_nodes) is None
    ]


class SingleTargets:
    """Measures the single-target plans.

    Args:
        index: the graph.
        targets: all targets of the run.
        costs: where costs come from.
        probing_s: how long blocks of targets without a profile may be measured in all; there may be a hundred, of seconds each.
        advice: which targets come first, and which need not run.
    """

    def __init__(
        self,
        index: GraphIndex,
        targets: Sequence[Target],
        costs: CostSource,
        probing_s: float = math.inf,
        advice: Advice = NO_ADVICE,
    ) -> None:
        self._index = index
        self._advice = advice
        self._costs = costs
        self._probing_s = probing_s
        self._candidates = [Candidate(index.all_nodes, target, "whole") for target in targets]
        self._wanted: list[Candidate] = []
        self.seconds: dict[Target, float] = {}  # that measuring each took now, all included
        self.left_out: dict[Target, str] = {}  # targets that need not run, and why

    def measure(
        self,
        candidates: CandidateSet,
        deadline: Deadline = NO_DEADLINE,
        hopeful: Collection[Target] = (),
        may_win: Callable[[Plan], bool] = lambda plan: True,
    ) -> Estimates:
        """Measure and profile each target that takes the whole graph.

        Args:
            candidates: what the targets offer.
            deadline: of the run; one target that may be returned is measured however late it is.
            hopeful: targets to try after these, though they refuse nodes (`may_take_all`).
            may_win: whether a plan may be returned.
        """
        offered = {(c.nodes, c.target) for c in candidates.candidates}
        self._wanted = [c for c in self._candidates if (c.nodes, c.target) in offered]
        tried = [c for c in self._candidates if c.target in hopeful]
        # Those that may be returned come first, since there may be time for one only.
        fit = [c for c in self._wanted if may_win(Plan((c,)))]
        others = [c for c in (*self._wanted, *tried) if c not in fit]
        ordered = [*self._most_promising_first(fit), *self._most_promising_first(others)]
        self._measure_in_turn(ordered, {c.target for c in fit or others}, deadline)
        self._wanted = [c for c in self._wanted if c.target not in self.left_out]
        self._candidates = [c for c in self._candidates if c.target not in self.left_out]
        estimates = Estimates(self._index)
        unprofiled = self.latencies_us()
        for target, row in self.rows().items():
            if row is not None and row.node_times_us:
                estimates.learn(target, dict(enumerate(row.node_times_us)))
                unprofiled.pop(target, None)
        best_us = min(self.latencies_us().values(), default=0.0)
        clock = deadline.clock
        end_s = clock() + self._probing_s
        for target, latency_us in unprofiled.items():
            if latency_us <= _WORTH_PROBING * best_us:
                own = blocks(self._index, candidates.candidates, target, estimates)
                shares_us = estimates.shares_us()
                own.sort(key=lambda block: -sum(shares_us[node] for node in bits(block.nodes)))
                self._costs.measure(own, stop=lambda: deadline.has_passed or clock() >= end_s)
            estimates.spread(target, latency_us)
        self._probing_s = end_s - clock()
        return estimates

    def _measure_in_turn(
        self, candidates: Sequence[Candidate], enough: set[Target], deadline: Deadline
    ) -> None:
        """Measure each, none at the expense of the others: those that need more than their share come last.

        Args:
            candidates: whole models, the most important first.
            enough: of these targets one is measured however late it is.
            deadline: of the run.
        """
        self._costs.recall(candidates)
        waiting = self._unknown(candidates)
        # To know all targets comes before the search, so it may take more than that has.
        until_s = deadline.clock() + _FIRST_SHARE * deadline.compare_left_s

        def measure(candidate: Candidate, limit_s: float) -> None:
            begin_s = deadline.clock()
            self._costs.measure([candidate], ends, None if math.isinf(limit_s) else limit_s)
            self.seconds[candidate.target] = deadline.clock() - begin_s

        def ends() -> bool:
            return deadline.clock() >= until_s and not enough.isdisjoint(self.latencies_us())

        for position, candidate in enumerate(waiting):
            share_s = (until_s - deadline.clock()) / (len(waiting) - position)
            if share_s < _LEAST_FIRST_S:
                break  # what cannot end in time would only delay the one that is measured all the same
            if not self._is_left_out(candidate, enough):
                measure(candidate, share_s)
        for candidate in self._unknown(waiting):
            if self._is_left_out(candidate, enough):
                continue
            if not enough.isdisjoint(self.latencies_us()):
                left_s = until_s - deadline.clock()
                if left_s > _LEAST_FIRST_S:
                    measure(candidate, left_s / 2)
            else:
                measure(candidate, math.inf)

    def _most_promising_first(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        by_target = {candidate.target: candidate for candidate in candidates}
        return [by_target[target] for target in self._advice.in_order(list(by_target))]

    def _is_left_out(self, candidate: Candidate, enough: Collection[Target]) -> bool:
        """Whether a target is of no use beside the fastest one that may be returned."""
        known = {target: us for target, us in self.latencies_us().items() if target in enough}
        if not known or candidate.target in self.left_out:
            return candidate.target in self.left_out
        reason = self._advice.against(candidate.target, min(known, key=lambda t: known[t]))
        if reason is not None:
            self.left_out[candidate.target] = reason
        return reason is not None

    def _unknown(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        return [c for c in candidates if isinstance(self._costs.cost(c), Unknown)]

    def joined_by(self, targets: Sequence[Target]) -> SingleTargets:
        """These targets and more; what time was spent on blocks stays spent."""
        all_targets = [*(candidate.target for candidate in self._candidates), *targets]
        return SingleTargets(self._index, all_targets, self._costs, self._probing_s)

    def corrected_us(
        self, timed_us: Mapping[Target, float], estimates: Estimates
    ) -> dict[Target, float]:
        """Microseconds of each target that ran the whole graph, as they compare where they ran in turn.

        Each was measured at its own moment, and at one moment a machine may be half as fast as at another. A target
        that was measured at a slow one would look too slow everywhere. The pace of all together stays as measured.

        Args:
            timed_us: what whole models took in turn.
            estimates: are rescaled by the same.
        """
        measured_us = self.latencies_us()
        paces = {t: us / measured_us[t] for t, us in timed_us.items() if t in measured_us}
        usual = statistics.median(paces.values()) if paces else 1.0
        for target, pace in paces.items():
            estimates.rescale(target, pace / usual)
        return measured_us | {t: measured_us[t] * pace / usual for t, pace in paces.items()}

    def latencies_us(self) -> dict[Target, float]:
        """Microseconds of each target that ran the whole graph, as measured."""
        costs = {c.target: self._costs.cost(c) for c in self._candidates}
        return {t: cost.latency_us for t, cost in costs.items() if isinstance(cost, Measured)}

    def fastest_first(self) -> list[Target]:
        """All targets: what is made of the fastest is timed first, since not all may be where time is short."""
        alone_us = self.latencies_us()
        targets = [candidate.target for candidate in self._candidates]
        return sorted(targets, key=lambda target: alone_us.get(target, math.inf))

    def within(self, error: float, latencies_us: Mapping[Target, float]) -> dict[Target, float]:
        """Those of some latencies whose targets err by no more than this."""
        rows = self.rows()
        known = latencies_us.items()
        return {t: us for t, us in known if (row := rows[t]) and (row.error or 0.0) <= error}

    def untried(self) -> list[str]:
        """What the report warns of where the time was up before each target had run the whole model."""
        left = [f"'{c.target}'" for c in self._wanted if self._costs.row(c) is None]
        if not left:
            return []
        return [
            f"the time was up before the whole model had run on {', '.join(left)}: allow more with --time-limit"
        ]

    def failures(self) -> list[str]:
        """Why targets cannot run the whole model, each as `target: reason`."""
        costs = ((c.target, self._costs.cost(c)) for c in self._candidates)
        return [f"{target}: {cost.reason}" for target, cost in costs if isinstance(cost, Infeasible)]

    def rows(self) -> dict[Target, CostRow | None]:
        """What the database has of each target on the whole graph."""
        return {c.target: self._costs.row(c) for c in self._candidates}

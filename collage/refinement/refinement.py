"""Which plans are timed end to end, and which of them is returned.

First every single target, the greedy plan and plans that keep an accuracy budget run in turn. That says how targets
compare (`SingleTargets.correct`), and the search then only looks for faster plans. What it promises runs next. What partitions
took inside the running plans corrects the costs, the search runs again, and what it newly promises enters
the next comparison, until nothing new is promised or the time is up. In time set apart for it,
small changes of the best plan are tried (`local_search`). The winner is timed again in fresh processes
beside the single targets that are nearly as fast, since a build can be lucky.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from collage.costs.estimates import Estimates
from collage.partitioner.candidate import Candidate, Plan, bits
from collage.partitioner.errors import NoPlanError
from collage.partitioner.graph.model import Model
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.rules.target_spec import TargetSpec
from collage.partitioner.search.baselines import greedy, priority
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.search.search import Solution
from collage.partitioner.target import Target
from collage.refinement.local_moves import KINDS, Kind, LocalMoves
from collage.refinement.local_search import PROMISING, LocalSearch, LocalSettings, worth_a_search
from collage.refinement.target_variants import offered
from collage.search.blocks import layouts, own_blocks
from collage.search.fixed_plans import joined, sensible, single_plan
from collage.search.lazy_search import WORTH_MEASURING, LazySearch
from collage.timing.plan_timer import PlanTimer, border_surplus_us, complexity, pace, residuals
from collage.timing.timed_plan import TimedPlan, distinct, identity, shared_comparisons, speedup

_MAX_COMPARISONS = 5
_MAX_CORRECTIONS = 3
# A winner is timed in so many processes beside the single targets that are nearly the best, or in two where it is
# far ahead: two builds of the same plans differ by some 4 %, and what else the machine does has shifted ratios by a
# quarter for minutes (docs/refinement.md).
_BUILDS, _FAR_AHEAD, _NEARLY_THE_BEST = 4, 1.5, 1.05
# So many comparisons may confirm one winner, and so many when it is so late that the caller has waited enough.
_MAX_CONFIRMATIONS, _WHEN_LATE = 8, 2
# A target further behind as a whole is not timed in blocks. Compiling those may take this share of the time left.
_WORTH_A_LAYOUT, _LAYOUTS_SHARE = 2.0, 0.25
# Plans are explored in this share of the time left, until so many comparisons in turn brought nothing better.
_EXPLORING_SHARE, _FRUITLESS = 0.3, 2
# So many plans that look faster than the winner, and are not proven to be, are timed beside it, in so many times
# as many processes: the interval of a gain of 3 % needs ten of them, where builds differ by 3 %.
_MOST_UNPROVEN, _UNPROVEN_BUILDS = 2, 2.5
# Single targets are, in so many times as many processes, where one may be faster than the winner by more than so much.
_MORE_BUILDS, _REGRET = 1.5, 0.01
# What may pay although no other plan comes near.
_ON_THE_SPOT: tuple[Kind, ...] = ("option", "fork")


class Refinement:
    """The comparisons of one tuning run.

    Args:
        model: the normalized model.
        specs: the targets, in the order in which they were given.
        constraints: what the user asked for.
        timer: where plans are timed.
        singles: measured latency of the whole model on the targets that can run it.
        local: how small changes of the best plan are tried at the end, in time of their own; None for
            not at all.
        patience_s: from so long after the time was up on, two comparisons at the most confirm a winner.
    """

    def __init__(
        self,
        model: Model,
        specs: Sequence[TargetSpec],
        constraints: Constraints,
        timer: PlanTimer,
        singles: Mapping[Target, float],
        local: LocalSettings | None = None,
        patience_s: float = math.inf,
    ) -> None:
        self._model = model
        self._patience_s = patience_s
        self._local = local
        self._constraints = constraints
        self._specs = specs
        self._timer = timer
        in_order = sorted(singles.items(), key=lambda item: item[1])
        self._in_blocks: dict[Target, TimedPlan] = {}
        self._singles = [TimedPlan(single_plan(model, t), f"single {t}", us) for t, us in in_order]

    def open(
        self,
        proposed: Sequence[TimedPlan],
        correct: Callable[[Sequence[TimedPlan]], Sequence[TimedPlan]],
    ) -> None:
        """Time plans that are known before the search, so that it looks only for faster ones.

        Single targets are among them: in turn they compare as they did not when each was measured at a moment of its
        own. Where there is only one, and nothing else, nothing is timed.

        Args:
            proposed: the plans.
            correct: given what was timed, plans instead of those that exceeded their tolerance; empty when
                none did.
        """
        if not proposed and len(self._singles) < 2:
            return
        self._open(proposed, needed=bool(proposed))
        for _ in range(_MAX_CORRECTIONS):
            corrected = self._new(correct(self._timer.entries))
            if not corrected:
                return
            self._timer.hold(corrected, again=self._leaders())

    def admit(self, specs: Sequence[TargetSpec], latencies_us: Mapping[Target, float]) -> None:
        """Search among these targets, which begin with those so far; the whole models of the new ones were timed."""
        new = {spec.target: latencies_us.get(spec.target) for spec in specs[len(self._specs) :]}
        self._specs = specs
        for entry in self._timer.entries:
            if len(entry.plan.partitions) == 1 and (us := new.get(entry.plan.partitions[0].target)):
                entry.predicted_us = us
                self._singles.append(entry)

    def lay_out(
        self, candidates: CandidateSet, estimates: Estimates, exact_us: Mapping[Target, float]
    ) -> list[Candidate]:
        """Time what each target takes in blocks, in turn: where each is quick, all at one pace.

        Args:
            candidates: of all targets.
            estimates: of what nodes take.
            exact_us: microseconds of the whole model on the targets that are exact enough to be used.

        Returns:
            The blocks of all targets, those included that were not timed.
        """
        shares_us = estimates.shares_us()
        plans = layouts(self._model.index, candidates.candidates, estimates)
        least_us = min(exact_us.values(), default=0.0) * self.lead()
        near = [t for t, us in exact_us.items() if us <= _WORTH_A_LAYOUT * least_us and t in plans]
        # How a target compares that refuses a node or two, nothing else would say.
        whole = {c.target for c in candidates.candidates if c.nodes == self._model.index.all_nodes}
        near += [t for t, plan in plans.items() if t not in whole and _takes_most(t, plan, shares_us)]
        self._in_blocks = {target: TimedPlan(plans[target], f"{target} in blocks") for target in near}
        entries = self._new(list(self._in_blocks.values()))
        if len(entries) > 1 and self._leaders():
            self._timer.hold(entries, share_of_time=_LAYOUTS_SHARE)
        return [block for target, plan in plans.items() for block in own_blocks(plan, target)]

    def explore(self, lazy: LazySearch) -> None:
        """Time plans whose partitions nobody measured, as long as they promise and bring anything.

        First what blocks promise that ran in turn, then what profiles do, corrected by all that ran. A comparison tells what
        each partition takes at one pace and beside its neighbors, which nothing that is measured alone does.

        Args:
            lazy: knows what partitions took so far, and is told what they take.
        """
        end_s = time.monotonic() + _EXPLORING_SHARE * max(
            0.0, self._timer.deadline_s - time.monotonic()
        )
        propose, count, idle = lazy.plans_of_blocks, 0, 0
        while (best := self._fastest()) and idle < _FRUITLESS and time.monotonic() < end_s:
            limit_us = self._at_known_pace_us(best) * (1 - WORTH_MEASURING)
            plans = [scored.plan for scored in propose() if scored.objective_us < limit_us]
            new = self._new([TimedPlan(plan, "explored", proposed=True) for plan in plans])
            for entry in new:
                count += 1
                entry.name += f" {count}"
            if new:
                self._timer.hold(new, again=[best], share_of_time=_LAYOUTS_SHARE)
                lazy.corrections = self.known_us()
            idle = 0 if self._fastest() is not best else idle + 1
            propose = lazy.promises

    def known_us(self) -> dict[tuple[int, Target], float]:
        """What partitions took inside the plans that ran, at the pace at which all else was measured."""
        if not self._timer.entries:
            return {}
        now = self._pace()
        return {key: us / now for key, us in residuals(self._timer.entries).items()}

    def _late_s(self) -> float:
        """For how long the time has been up; negative before."""
        return time.monotonic() - self._timer.deadline_s

    def _pace(self) -> float:
        return pace(self._singles, self._timer.entries[0])

    def _at_known_pace_us(self, entry: TimedPlan) -> float:
        return entry.ratio * self._timer.entries[0].latency_us / self._pace()

    def singles_us(self) -> dict[Target, float]:
        """What each single target took in the comparisons so far; empty before the first."""
        return {e.plan.partitions[0].target: e.latency_us for e in self._singles if e.timed}

    def lead(self) -> float:
        """Time of the best plan so far over that of the best single target; 1 where that is not known."""
        singles = [entry.ratio for entry in self._singles if self._timer.may_win(entry)]
        leaders = [entry.ratio for entry in self._leaders()]
        return min([*leaders, *singles]) / min(singles) if singles else 1.0

    def _open(self, others: Sequence[TimedPlan], needed: int = 0) -> None:
        """The first comparison: the baselines and so many of the others are timed whatever it takes."""
        baselines = distinct([*self._singles, *self._greedy()])
        self._timer.hold(distinct([*baselines, *others]), needed=len(baselines) + needed)

    def _leaders(self) -> list[TimedPlan]:
        """The best plan so far, where there is one."""
        return [self._timer.winner()] if any(map(self._timer.may_win, self._timer.entries)) else []

    def _fastest(self) -> TimedPlan | None:
        """What looks fastest so far, whether that is proven or not."""
        fit = [entry for entry in self._timer.entries if self._timer.may_win(entry)]
        return min(fit, key=lambda entry: entry.ratio, default=None)

    def refined(self, lazy: LazySearch, solution: Solution, plans: int) -> TimedPlan:
        """The fastest plan after all comparisons.

        Args:
            lazy: searches again with corrected costs.
            solution: what it found first.
            plans: how many plans of a search to time.
        """
        leaders = self._leaders()
        promised = self._new(searched(solution))
        if leaders:
            # What the first search promises is at the pace at which everything was measured.
            promised = self._promised(solution, self._at_known_pace_us(leaders[0]))
        if not self._timer.entries:
            self._open(promised)
        elif promised:
            self._timer.hold(promised, again=leaders)
        for _ in range(_MAX_COMPARISONS - 1):
            if lazy.out_of_time:
                break
            best = self._timer.winner()
            baseline_us = self._at_known_pace_us(self._timer.entries[0])
            lazy.raise_borders(border_surplus_us(promised, baseline_us))
            lazy.corrections = self.known_us()
            best_us = self._at_known_pace_us(best)
            promised = self._promised(lazy.run(plans, best_us), best_us)
            if not promised:
                break
            self._timer.hold(promised, again=[best])
        if self._local is not None:
            # Half of the builds before and half after, since disturbances last for a while.
            self._confirmed(self._timer.winner(), _BUILDS // 2)
            # When it is late, the time set apart for small changes is all there is, and a comparison may not fit in.
            if self._late_s() >= 0 and self._timer.latest_s > self._local.seconds:
                self._timer.say("the time is up: small changes of the best plan are left out")
            else:
                self._try_neighbors(lazy, self._local)
        return self._confirmed(self._timer.winner())

    def _hopeful(self, winner: TimedPlan) -> list[TimedPlan]:
        """The plans that look faster than the winner, and by most."""
        found = [e for e in self._timer.entries if self._looks_faster(e, winner)]
        return sorted(found, key=lambda entry: entry.ratio)[:_MOST_UNPROVEN]

    def _looks_faster(self, entry: TimedPlan, winner: TimedPlan) -> bool:
        return self._timer.may_win(entry) and entry.ratio * PROMISING < winner.ratio

    def _try_neighbors(self, lazy: LazySearch, local: LocalSettings) -> None:
        best = self._timer.winner()
        targets = tuple(spec.target for spec in self._specs)
        near = worth_a_search(self._timer.entries, best, targets)
        moves = LocalMoves(
            self._model.index,
            lazy.candidates,
            targets,
            lambda plan: self._timer.allows(plan) and sensible(self._model.index, plan),
            offered(targets, self._timer.threads, self._timer.entries),
            self._timer.threads,
            KINDS if near else _ON_THE_SPOT,
        )
        end_s = time.monotonic() + local.seconds
        self._timer.deadline_s = max(self._timer.deadline_s, end_s)
        if moves.kinds:
            lazy.corrections = self.known_us()
            known = (moves, self._timer, local, lambda: time.monotonic() >= end_s)
            LocalSearch(*known, lazy.promise_us).improve(best)

    def asked_for(self, entry: TimedPlan) -> TimedPlan:
        """A plan that the caller asked for, timed beside every single target.

        Raises:
            NoPlanError: it cannot be run.
        """
        asked = distinct([*self._singles, entry])
        self._timer.hold(asked, needed=len(asked))
        same = next(e for e in self._timer.entries if identity(e.plan) == identity(entry.plan))
        if not same.timed:
            raise NoPlanError(f"the {entry.name} cannot be run: {same.failure}")
        return same

    def best_single(self) -> TimedPlan:
        """The fastest single target.

        Raises:
            NoPlanError: no target can run the whole model.
        """
        if not self._singles:
            raise NoPlanError(
                "no single target can run the whole model; leave --strategy single out, or add a target"
            )
        self._timer.hold(self._singles, needed=len(self._singles))
        return self._confirmed(self._timer.winner())

    def greedy_entry(self) -> TimedPlan:
        """What runtimes' own partitioners give: the target with the largest claim takes all it can."""
        return TimedPlan(greedy(self._model.index, self._specs, self._constraints), "greedy")

    def priority_entry(self) -> TimedPlan:
        """Every node on the first target, in the order given, that takes it."""
        return TimedPlan(priority(self._model.index, self._specs, self._constraints), "priority")

    def _greedy(self) -> list[TimedPlan]:
        try:
            return [self.greedy_entry()]
        except NoPlanError:
            # It is a baseline here: where it fails, the search may still find a plan.
            return []

    def _promised(self, solution: Solution, best_us: float) -> list[TimedPlan]:
        """New plans that are promised to be faster than the best timed one."""
        limit_us = best_us * (1 - WORTH_MEASURING)
        new = self._new(searched(solution))
        return [
            entry for entry in new if entry.predicted_us is not None and entry.predicted_us < limit_us
        ]

    def _new(self, entries: Sequence[TimedPlan]) -> list[TimedPlan]:
        return [entry for entry in distinct(entries) if not self._timer.knows(entry.plan)]

    def _joined(self, winner: TimedPlan) -> list[TimedPlan]:
        """The same with a border less, where two partitions of one target feed each other; it is timed beside it."""
        index = self._model.index
        plan = winner.plan if winner.plan.lanes > 1 else joined(index, winner.plan)
        found = [entry for entry in self._timer.entries if identity(entry.plan) == identity(plan)]
        if not found and self._timer.allows(plan) and sensible(index, plan):
            found = [TimedPlan(plan, f"{winner.name}, joined")]
            self._timer.hold(found, again=[winner])
        return [entry for entry in found if entry is not winner and self._timer.may_win(entry)]

    def _least(self, single: TimedPlan) -> float:
        """What a single target's ratio may be: in one piece it is no slower than in blocks, unless its minute was bad."""
        blocks = self._in_blocks.get(single.plan.partitions[0].target)
        return min(single.ratio, blocks.ratio) if blocks is not None and blocks.timed else single.ratio

    def _confirmed(self, winner: TimedPlan, builds: int = _BUILDS) -> TimedPlan:
        """Time a winner again, and who may take its place, until each ran in enough processes."""
        singles = [entry for entry in self._singles if self._timer.may_win(entry)]
        best = min((entry.ratio for entry in singles), default=1.0)
        rivals = [entry for entry in singles if self._least(entry) <= _NEARLY_THE_BEST * best]
        rivals += self._joined(winner)
        # Chosen once: of many plans that are nearly alike another one is ahead after each comparison.
        hopeful = [winner, *self._hopeful(winner)]
        for held in range(_MAX_CONFIRMATIONS):
            others = [entry for entry in rivals if entry is not winner]
            unproven = [
                entry
                for entry in hopeful
                if self._looks_faster(entry, winner)
                and len(shared_comparisons(entry, winner)) < _UNPROVEN_BUILDS * builds
            ]
            if not unproven and not _in_doubt(winner, others, builds):
                break
            if held >= _WHEN_LATE and self._late_s() > self._patience_s:
                self._timer.say(f"the time is up: {winner.name} is confirmed no further")
                break
            origins = [e.challenges for e in (winner, *unproven) if e.challenges is not None]
            again = distinct([*others, *origins, winner, *unproven])
            self._timer.hold([], again=again)
            winner = self._timer.winner()
        return winner


def _in_doubt(winner: TimedPlan, rivals: Sequence[TimedPlan], enough: int) -> bool:
    """Whether a plan was timed in too few processes to say that no single target is faster."""
    if not rivals:
        return complexity(winner.plan) > (1, 0) and len(winner.timings) < 2
    builds = min(len(shared_comparisons(winner, rival)) for rival in rivals)
    leads = [speedup(rival, winner).low for rival in rivals]
    if builds < enough:
        return builds < 2 or min(leads) <= _FAR_AHEAD
    # Of single targets that are nearly alike, another one may be ahead after each comparison.
    return builds < _MORE_BUILDS * enough and min(leads) < 1 - _REGRET


def _takes_most(target: Target, plan: Plan, shares_us: Sequence[float]) -> bool:
    """Whether at least half of the time goes by in a target's own blocks."""
    own = sum(shares_us[node] for block in own_blocks(plan, target) for node in bits(block.nodes))
    return own >= sum(shares_us) / 2


def searched(solution: Solution) -> list[TimedPlan]:
    """A solution's plans as entries."""
    return [
        TimedPlan(scored.plan, f"searched {position}", scored.objective_us, proposed=True)
        for position, scored in enumerate(solution.plans, 1)
    ]

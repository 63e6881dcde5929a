"""Searches again with corrected costs, until it finds nothing new, and tries small changes of the best plan.

The baselines were timed in turn before (`collage.refinement.comparisons`), so a search only looks for faster plans.
The plans that it finds run next. What partitions took inside the running plans corrects the costs, and time that
no partition explains becomes a price of borders. The search runs again, and the new plans enter the next
comparison, until there are none or the time is up. Then small changes of the best plan are tried
(`local_search`), and the winner is confirmed (`confirmation`).

Source: Jeon et al. (PACT'22, section 5) re-rank plans by an evolutionary search, since the sum of parts deceives; here
the sum itself is corrected.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from collage.partitioner.errors import NoPlanError
from collage.partitioner.search.search import Solution
from collage.refinement.comparisons import Comparisons
from collage.refinement.confirmation import BUILDS, confirm
from collage.refinement.local_moves import KINDS, Kind, LocalMoves
from collage.refinement.local_search import PER_SCREENING, LocalSearch, LocalSettings, worth_a_search
from collage.refinement.target_variants import offered_options
from collage.search.corrections import NO_CORRECTIONS, Corrections
from collage.search.fixed_plans import sensible
from collage.search.lazy_search import WORTH_MEASURING, LazySearch
from collage.timing.standings import border_surplus_us
from collage.timing.timed_plan import TimedPlan, distinct

_MAX_COMPARISONS = 5
# What may pay although no other plan comes near.
_ON_THE_SPOT: tuple[Kind, ...] = ("option", "fork")


@dataclass(frozen=True)
class Refinement:
    """Finds the fastest plan by comparisons.

    Args:
        comparisons: of the run so far.
        local: how small changes of the best plan are tried at the end, in time of their own; None for
            not at all.
    """

    comparisons: Comparisons
    local: LocalSettings | None = None

    def refined(
        self,
        lazy: LazySearch,
        solution: Solution,
        plans: int,
        corrections: Corrections = NO_CORRECTIONS,
    ) -> TimedPlan:
        """The fastest plan after all comparisons.

        Args:
            lazy: searches again with corrected costs.
            solution: what it found first.
            plans: how many plans of a search to time.
            corrections: of costs, by the comparisons so far.

        Raises:
            NoPlanError: no plan could be run.
        """
        comparisons = self.comparisons
        leaders = comparisons.standings.leaders()
        predicted = comparisons.new(searched(solution))
        if leaders:
            # The first search predicts at the pace at which everything was measured.
            predicted = self._predicted_faster(solution, comparisons.at_known_pace_us(leaders[0]))
        if not comparisons.standings.entries:
            comparisons.time_baselines(predicted)
        elif predicted and comparisons.fits(len(predicted) + 2):
            comparisons.time(predicted, again=leaders)
        corrections = self._search_again(lazy, predicted, plans, corrections)
        if self.local is not None:
            # Half of the builds before and half after, since disturbances last for a while.
            self._confirmed(comparisons, BUILDS // 2)
            # When it is late, the time set apart for small changes is all there is, and a comparison may not fit in.
            is_late = comparisons.deadline.has_passed
            if (is_late and comparisons.timer.latest_s > self.local.seconds) or not (
                comparisons.fits_before_confirming(PER_SCREENING + 2)
            ):
                comparisons.timer.skip("small changes of the best plan")
            else:
                comparisons = self._try_neighbors(lazy, self.local, corrections)
        return self._confirmed(comparisons)

    def _search_again(
        self, lazy: LazySearch, predicted: list[TimedPlan], plans: int, corrections: Corrections
    ) -> Corrections:
        """Search and compare in turns until nothing new is found; the costs as corrected at last."""
        comparisons = self.comparisons
        for _ in range(_MAX_COMPARISONS - 1):
            if lazy.out_of_time:
                break
            best = comparisons.standings.winner()
            baseline_us = comparisons.at_known_pace_us(comparisons.standings.baseline)
            border_us = corrections.border_us + border_surplus_us(predicted, baseline_us)
            corrections = comparisons.corrected(replace(corrections, border_us=border_us))
            best_us = comparisons.at_known_pace_us(best)
            predicted = self._predicted_faster(lazy.run(plans, best_us, corrections), best_us)
            if not predicted or not comparisons.fits(len(predicted) + 2):
                break
            comparisons.time(predicted, again=[best])
        return corrections

    def _predicted_faster(self, solution: Solution, best_us: float) -> list[TimedPlan]:
        """New plans that are faster by prediction than the best timed one."""
        limit_us = best_us * (1 - WORTH_MEASURING)
        new = self.comparisons.new(searched(solution))
        return [
            entry for entry in new if entry.predicted_us is not None and entry.predicted_us < limit_us
        ]

    def _confirmed(self, comparisons: Comparisons, builds: int = BUILDS) -> TimedPlan:
        return confirm(comparisons, comparisons.standings.winner(), builds)

    def _try_neighbors(
        self, lazy: LazySearch, local: LocalSettings, corrections: Corrections
    ) -> Comparisons:
        """Time small changes of the best plan; the comparisons with the time that was set apart for that."""
        comparisons, timer = self.comparisons, self.comparisons.timer
        index = comparisons.model.index
        standings = comparisons.standings
        best = standings.winner()
        targets = tuple(spec.target for spec in comparisons.specs)
        near = worth_a_search(standings.entries, best, targets)
        moves = LocalMoves(
            index,
            lazy.candidates,
            targets,
            eligible=lambda plan: comparisons.allows(plan) and sensible(index, plan),
            tunable=offered_options(targets, timer.threads, standings.entries),
            threads=timer.threads,
            kinds=KINDS if near else _ON_THE_SPOT,
        )
        deadline = comparisons.deadline
        end_s = deadline.clock() + local.seconds
        later = replace(comparisons, deadline=deadline.extended_to(end_s))
        if moves.kinds:
            known = comparisons.corrected(corrections)
            LocalSearch(
                moves=moves,
                timer=timer,
                settings=local,
                out_of_time=lambda: (
                    deadline.clock() >= end_s
                    or not comparisons.fits_before_confirming(PER_SCREENING + 2)
                ),
                predict_us=partial(lazy.predict_us, corrections=known),
                deadline=later.deadline,
            ).improve(best)
        return later

    def asked_for(self, entry: TimedPlan) -> TimedPlan:
        """A plan that the caller asked for, timed beside every single target.

        Raises:
            NoPlanError: it cannot be run.
        """
        asked = distinct([*self.comparisons.singles, entry])
        standings = self.comparisons.time(asked, needed=len(asked))
        same = standings.find(entry.plan)[0]  # a single target may be the same plan
        if not same.timed:
            raise NoPlanError(f"the {entry.name} cannot be run: {same.failure}")
        return same

    def checked(self) -> TimedPlan:
        """The fastest of the plans that were timed before a search, confirmed; the baselines run where none did.

        Raises:
            NoPlanError: no plan could be run.
        """
        if not self.comparisons.standings.leaders():
            self.comparisons.time_baselines([])
        return self._confirmed(self.comparisons)

    def best_single(self) -> TimedPlan:
        """The fastest single target.

        Raises:
            NoPlanError: no target can run the whole model.
        """
        singles = self.comparisons.singles
        if not singles:
            raise NoPlanError(
                "no single target can run the whole model; leave --strategy single out, or add a target"
            )
        self.comparisons.time(singles, needed=len(singles))
        return self._confirmed(self.comparisons)


def searched(solution: Solution) -> list[TimedPlan]:
    """A solution's plans as entries."""
    return [
        TimedPlan(scored.plan, f"searched {position}", scored.objective_us, proposed=True)
        for position, scored in enumerate(solution.plans, 1)
    ]

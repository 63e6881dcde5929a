"""The comparisons of whole plans of one tuning run: what is timed beside what, and what that says about costs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collage.deadline import NO_DEADLINE, Deadline
from collage.partitioner.candidate import Plan
from collage.partitioner.errors import NoPlanError
from collage.partitioner.graph.model import Model
from collage.partitioner.rules.target_spec import TargetSpec
from collage.partitioner.search.baselines import greedy
from collage.partitioner.search.constraints import Constraints
from collage.partitioner.target import Target
from collage.search.corrections import Corrections
from collage.search.fixed_plans import single_plan
from collage.timing.plan_timer import PlanTimer
from collage.timing.standings import Standings, pace, residuals
from collage.timing.timed_plan import TimedPlan, distinct

# So many plans are compared however late it is.
_FEWEST = 2
# Plans that miss their tolerance are replaced so many times at the most.
_MAX_REPLACEMENTS = 3


@dataclass(frozen=True)
class Comparisons:
    """Whole plans of one run, timed beside its baselines.

    Args:
        model: the normalized model.
        specs: the targets, in the order in which they were given.
        constraints: what the caller asked for.
        timer: where plans are timed.
        singles: the whole model on each target that can run it, the fastest first.
        in_blocks: what targets take in blocks, where that was timed.
        deadline: of the run.
    """

    model: Model
    specs: Sequence[TargetSpec]
    constraints: Constraints
    timer: PlanTimer
    singles: tuple[TimedPlan, ...]
    in_blocks: Mapping[Target, TimedPlan] = field(default_factory=dict)
    deadline: Deadline = NO_DEADLINE

    @classmethod
    def of(
        cls,
        model: Model,
        specs: Sequence[TargetSpec],
        constraints: Constraints,
        timer: PlanTimer,
        latencies_us: Mapping[Target, float],
        deadline: Deadline = NO_DEADLINE,
        first: Target | None = None,
        last: Collection[Target] = (),
    ) -> Comparisons:
        """The comparisons of a run before the first one.

        Args:
            model: the normalized model.
            specs: the targets, in the order in which they were given.
            constraints: what the caller asked for.
            timer: where plans are timed.
            latencies_us: of the whole model on the targets that can run it.
            deadline: of the run.
            first: the target whose whole model is timed before the others, however late it is; else the fastest is.
            last: targets that are timed after the others, since they can hardly be returned.
        """

        def rank(target: Target) -> tuple[bool, bool, float]:
            return target != first, target in last, latencies_us[target]

        singles = [
            TimedPlan(single_plan(model, target), f"single {target}", latencies_us[target])
            for target in sorted(latencies_us, key=rank)
        ]
        return cls(
            model=model,
            specs=specs,
            constraints=constraints,
            timer=timer,
            singles=tuple(singles),
            deadline=deadline,
        )

    @property
    def standings(self) -> Standings:
        """How the plans compare by now."""
        return self.timer.standings

    def fits(self, count: int) -> bool:
        """True when so many plans may be compared to find something faster."""
        return self.deadline.fits(self.timer.expected_s(count))

    def fits_before_confirming(self, count: int) -> bool:
        """True when so many plans may be compared although the time for looking for plans may be up."""
        return self.timer.expected_s(count) <= self.deadline.compare_left_s

    def fits_confirming(self, count: int) -> bool:
        """True when so many plans may be compared to confirm a winner."""
        return self.deadline.fits_confirming(self.timer.expected_s(count))

    def time(
        self,
        plans: Sequence[TimedPlan],
        again: Sequence[TimedPlan] = (),
        needed: int = 0,
        share_of_time: float = 1.0,
    ) -> Standings:
        """Time plans in turn until the deadline; see `PlanTimer.time`."""
        return self.timer.time(
            plans,
            again=again,
            needed=needed,
            deadline=self.deadline,
            share_of_time=share_of_time,
        )

    def open(
        self,
        proposed: Sequence[TimedPlan],
        replace_missed: Callable[[Sequence[TimedPlan]], Sequence[TimedPlan]] = lambda entries: (),
    ) -> None:
        """Time plans that are known before the search, so that it looks only for faster ones.

        Single targets are among them: in turn they compare as they did not when each was measured at a moment of its
        own. Where there is only one, and nothing else, nothing is timed.

        Args:
            proposed: the plans.
            replace_missed: given what was timed, plans instead of those that exceeded their tolerance; empty when
                none did.
        """
        if not proposed and len(self.singles) < 2:
            return
        self.time_baselines(proposed, needed=bool(proposed))
        self._replace(replace_missed)

    def add(
        self,
        proposed: Sequence[TimedPlan],
        replace_missed: Callable[[Sequence[TimedPlan]], Sequence[TimedPlan]] = lambda entries: (),
    ) -> None:
        """Time more plans beside the best so far, the first of them however late it is; see `open`."""
        new = self.new(proposed)
        if new:
            self.time(new, again=self.standings.leaders(), needed=1)
            self._replace(replace_missed)

    def _replace(self, replace_missed: Callable[[Sequence[TimedPlan]], Sequence[TimedPlan]]) -> None:
        for _ in range(_MAX_REPLACEMENTS):
            instead = self.new(replace_missed(self.standings.entries))
            if not instead or not self.fits(len(instead) + 2):
                return
            self.time(instead, again=self.standings.leaders())

    def time_baselines(self, others: Sequence[TimedPlan], needed: int = 0) -> None:
        """The first comparison: the baselines and so many of the others are timed however late it is.

        Where that takes longer than there is, only the first single target is, and beside it the best plan that a search
        proposed, or else the second single target.
        """
        baselines = distinct([*self.singles, *self._greedy()])
        count = len(baselines) + needed
        if not self.fits_before_confirming(count):
            count = _FEWEST
            best = [entry for entry in others if entry.proposed][:1]
            baselines = [*baselines[:1], *best, *baselines[1:]]
        self.time(distinct([*baselines, *others]), needed=count)

    def _greedy(self) -> list[TimedPlan]:
        try:
            return [self.greedy()]
        except NoPlanError:
            # It is a baseline here: where it fails, the search may still find a plan.
            return []

    def greedy(self) -> TimedPlan:
        """What runtimes' own partitioners give: the target with the largest claim takes all it can.

        Raises:
            NoPlanError: it does not cover the model.
        """
        return TimedPlan(greedy(self.model.index, self.specs, self.constraints), "greedy")

    def joined_by(
        self, specs: Sequence[TargetSpec], latencies_us: Mapping[Target, float]
    ) -> Comparisons:
        """The same with more targets, whose whole models were timed among the proposed plans.

        Args:
            specs: of all targets; they begin with those so far.
            latencies_us: what the whole model took on each when it was measured.
        """
        new = {spec.target: latencies_us.get(spec.target) for spec in specs[len(self.specs) :]}
        singles = list(self.singles)
        for entry in self.standings.entries:
            if len(entry.plan.partitions) == 1 and (us := new.get(entry.plan.partitions[0].target)):
                self.timer.predict(entry, us)
                singles.append(entry)
        return replace(self, specs=specs, singles=tuple(singles))

    def joined_late(self, latencies_us: Mapping[Target, float]) -> Comparisons:
        """The same with single targets that were measured after the first comparison; they run beside the leader.

        Args:
            latencies_us: what the whole model took on each of them.
        """
        late = [
            TimedPlan(single_plan(self.model, t), f"single {t}", us) for t, us in latencies_us.items()
        ]
        if not late:
            return self
        if self.fits_before_confirming(len(late) + 2):
            self.time(late, again=self.standings.leaders(), needed=len(late))
        else:
            self.timer.skip(f"{', '.join(entry.name for entry in late)} in turn")
        return replace(self, singles=(*self.singles, *late))

    def corrected(self, corrections: Corrections) -> Corrections:
        """Corrections with what partitions took inside the plans that ran, at the pace at which all else was measured."""
        entries = self.standings.entries
        if not entries:
            return replace(corrections, partition_us={})
        now = self._pace()
        partition_us = {key: us / now for key, us in residuals(entries).items()}
        return replace(corrections, partition_us=partition_us)

    def at_known_pace_us(self, entry: TimedPlan) -> float:
        """What a plan takes at the pace at which all else was measured."""
        return self.standings.ratio(entry) * self.standings.baseline.latency_us / self._pace()

    def _pace(self) -> float:
        return pace(self.singles, self.standings.baseline)

    def singles_us(self) -> dict[Target, float]:
        """What each single target took in the comparisons so far; empty before the first."""
        return {e.plan.partitions[0].target: e.latency_us for e in self.singles if e.timed}

    def lead(self, targets: Collection[Target]) -> float:
        """Time of the best plan so far over that of the best of some single targets; 1 where that is not known."""
        standings = self.standings
        own = [entry for entry in self.singles if entry.plan.partitions[0].target in targets]
        singles = [standings.ratio(entry) for entry in own if standings.may_win(entry)]
        leaders = [standings.ratio(entry) for entry in standings.leaders()]
        return min([*leaders, *singles]) / min(singles) if singles else 1.0

    def new(self, entries: Sequence[TimedPlan]) -> list[TimedPlan]:
        """Those that were not timed yet, each once."""
        return [entry for entry in distinct(entries) if not self.standings.knows(entry.plan)]

    def allows(self, plan: Plan) -> bool:
        """True when a plan keeps what the caller asked for."""
        return self.timer.allows(plan)

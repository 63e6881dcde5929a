"""Whole plans are timed against each other, and what is found out corrects the costs.

Terms: the *baseline* is the plan that takes part in every comparison, so that results of different minutes
compare: a plan's *ratio* is its time over the baseline's in the same round. The best single target is the
baseline where one can run the whole model, else greedy. The *residual* of a partition is what it took
inside a running plan against what it was reckoned at.

Each comparison's residuals replace the reckoned costs of the partitions that took part, and the time that
no partition explains becomes a border penalty for the pairs of targets that met. Then the search runs
again; a plan that is newly promised to win enters the next comparison. It ends when nothing new is
proposed or the time is up.

Invariant: the plan that is returned was timed here; a plan with more partitions, or with a mix inside one, wins only
if the whole confidence interval of its ratio to the best simpler plan says so.

Source: Jeon et al. (PACT'22, section 5) saw that the sum of parts deceives and re-ranked by hand of an
evolutionary search; here the sum itself is corrected.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from collage.backends.quantization.float_nodes import positions_of
from collage.backends.rewriting.rewrite import forms_of
from collage.events import Event, Listener
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.errors import NoPlanError
from collage.partitioner.target import Target
from collage.runner import Runner
from collage.timing.interleaved import hold
from collage.timing.request import (
    HOPELESS_RATIO,
    NO_TIME,
    PlanStep,
    PlanSteps,
    PlanTiming,
    TimingRequest,
)
from collage.timing.timed_plan import TimedPlan, clearly_faster, identity, shared_comparisons

# So many rounds judge, and a comparison of fewer is a screening. More say little: builds differ by more than rounds do.
JUDGING_ROUNDS = 12
# A comparison may take so long to compile plans even when the time is up.
_LEAST_S = 5.0
# Of rounds that do not count, such a share is told.
_WORTH_A_WARNING = 0.1


class PlanTimer:
    """Times plans of one model and remembers what came out.

    Args:
        regions: sub-models of partitions.
        template: a comparison without plans and regions: samples, expected outputs, metric and limits.
        listener: is told about every comparison.
        cancel: stops the child that is timing.
        eligible: whether a plan may be returned; baselines that break a constraint are timed only.
        tolerance: plans with a larger error are timed where the template lets them, but never returned;
            None for no bound.
        runner: where plans run.
        deadline_s: `time.monotonic()` after which nothing new is compiled; infinite for no bound.
    """

    def __init__(
        self,
        regions: RegionFiles,
        template: TimingRequest,
        listener: Listener,
        cancel: threading.Event | None = None,
        eligible: Callable[[Plan], bool] = lambda plan: True,
        tolerance: float | None = None,
        runner: Runner | None = None,
        deadline_s: float = math.inf,
    ) -> None:
        self._tolerance = tolerance
        self.deadline_s = deadline_s
        self._runner = runner or Runner()
        self._eligible = eligible
        self._regions = regions
        self._template = template
        self._listener = listener
        self._cancel = cancel
        self.entries: list[TimedPlan] = []
        self.seconds = self.latest_s = 0.0  # of all comparisons, and of the latest
        self._comparisons = 0
        self._rounds = self._left_out = 0
        self._looks_us: tuple[float, ...] = ()

    @property
    def threads(self) -> int:
        """How many threads one call may use."""
        return self._template.threads

    def knows(self, plan: Plan) -> bool:
        """True when this very plan took part in a comparison, and there was time for it."""
        tried = (entry for entry in self.entries if entry.failure != NO_TIME)
        return any(identity(entry.plan) == identity(plan) for entry in tried)

    def allows(self, plan: Plan) -> bool:
        """True when this plan may be returned."""
        return self._eligible(plan)

    def may_win(self, entry: TimedPlan) -> bool:
        """True when a timed plan keeps the tolerance and what the caller asked for."""
        limit = self._tolerance
        exact_enough = limit is None or entry.error is None or entry.error <= limit
        return entry.timed and exact_enough and self._eligible(entry.plan)

    def hold(
        self,
        newcomers: Sequence[TimedPlan],
        again: Sequence[TimedPlan] = (),
        rounds: int = JUDGING_ROUNDS,
        needed: int = 0,
        share_of_time: float = 1.0,
    ) -> None:
        """Time new plans together with the baseline and some known ones.

        Args:
            newcomers: plans that were not timed yet; in the first comparison the first is the baseline.
            again: known plans to time once more beside them.
            rounds: blocks per plan at the most.
            needed: so many of the newcomers are compiled however late it is, and the known ones.
            share_of_time: of what is left, for compiling the others.
        """
        begin = time.monotonic()
        known = self.entries[:1] + [entry for entry in again if entry is not self.entries[0]]
        entries = [*known, *newcomers]
        names = ", ".join(entry.name for entry in entries)
        self.say(f"timing {len(entries)} plans in turn: {names}")
        regions = {}
        plans = []
        for entry in entries:
            steps = []
            for partition in entry.plan.partitions:
                model = (entry.regions or self._regions).get(partition.nodes)
                name = str(model.path.parent)
                regions[name] = model
                steps.append(PlanStep(name, partition.target))
            plans.append(PlanSteps(tuple(steps), entry.plan.lanes))
        comparison = replace(
            self._template,
            plans=tuple(plans),
            regions=regions,
            rounds=rounds,
            needed=max(1, len(known) + needed),
            backwards=self._comparisons % 2 == 1,
            looks_us=self._looks_us,
        )
        with self._runner.alone(self._cancel):
            left_s = share_of_time * (self.deadline_s - time.monotonic())
            comparison = replace(comparison, prepare_s=max(_LEAST_S, left_s))
            timings = hold(comparison, self._cancel, self._runner.run)
        baseline = next((timing for timing in timings if timing.samples_us), PlanTiming())
        self._looks_us = baseline.looks_us or self._looks_us
        self._rounds += len(baseline.samples_us) + baseline.left_out
        self._left_out += len(baseline.samples_us) if baseline.far else baseline.left_out
        for entry, timing in zip(entries, timings, strict=True):
            if rounds < JUDGING_ROUNDS:
                entry.screenings.add(self._comparisons)
            pairs = zip(timing.samples_us, baseline.samples_us, strict=False)
            entry.timings[self._comparisons] = timing
            entry.baseline_ratios[self._comparisons] = [mine / other for mine, other in pairs]
        self.entries.extend(newcomers)
        if not self.entries[0].ratios:
            # Who failed cannot be the baseline of later comparisons.
            self.entries.sort(key=lambda entry: entry.timings.get(self._comparisons) is not baseline)
        self._comparisons += 1
        self.latest_s = time.monotonic() - begin
        self.seconds += self.latest_s
        self._tell(entries)

    def warnings(self) -> tuple[str, ...]:
        """What the user should know of how plans were timed."""
        if self._left_out <= _WORTH_A_WARNING * self._rounds:
            return ()
        return (
            f"in {self._left_out} of {self._rounds} rounds the cores were further apart than they can be, or one physical core, "
            "as a virtual machine's are from time to time; such rounds count only where there are no others (docs/measurement.md)",
        )

    def winner(self) -> TimedPlan:
        """The fastest timed plan; where noise cannot tell, the simpler one (`complexity`).

        Raises:
            NoPlanError: no plan could be run; the message gives each one's failure.
        """
        timed = [entry for entry in self.entries if self.may_win(entry) and entry.beats_its_origin]
        if not timed:
            failures = "; ".join(f"{entry.name}: {entry.failure}" for entry in self.entries)
            raise NoPlanError(f"no plan could be run end to end ({failures})")
        return simplest_of_the_fastest(timed)

    def say(self, text: str) -> None:
        """Tell the listener."""
        self._listener(Event("end_to_end", text))

    def _tell(self, entries: Sequence[TimedPlan]) -> None:
        for entry in entries:
            now_us = entry.timings[self._comparisons - 1].samples_us
            said = f"{statistics.median(now_us):.0f} µs" if now_us else "not timed"
            if entry.failure is not None:
                said = f"failed: {entry.failure}"
            data = {
                "plan": entry.name,
                "partitions": len(entry.plan.partitions),
                "targets": [str(target) for target in entry.plan.targets],
                "latency_us": entry.latency_us if entry.timed else None,
                "ratio": entry.ratio if entry.timed else None,
                "failure": entry.failure,
            }
            self._listener(Event("end_to_end", f"{entry.name}: {said}", data=data))


def simplest_of_the_fastest(timed: Sequence[TimedPlan]) -> TimedPlan:
    """The fastest of timed plans; where noise cannot tell, the simpler one (`complexity`)."""
    fastest = min(timed, key=lambda entry: entry.ratio)
    # Those that were dropped early have few samples, in which one disturbed round hides how slow they are. Of those
    # that met it in several builds the interval says it.
    near = [
        e
        for e in timed
        if e.ratio <= fastest.ratio * HOPELESS_RATIO or len(shared_comparisons(e, fastest)) > 1
    ]
    simpler = [e for e in near if complexity(e.plan) < complexity(fastest.plan)]
    beaten: list[TimedPlan] = []
    for entry in sorted(simpler, key=lambda e: (*complexity(e.plan), e.ratio)):
        # Who is slower than one that is clearly beaten is beaten too, however much noise is on it.
        if beaten and entry.ratio >= beaten[-1].ratio:
            continue
        if clearly_faster(fastest, entry):
            beaten.append(entry)
        elif all(
            clearly_faster(entry, e) for e in beaten if complexity(e.plan) < complexity(entry.plan)
        ):
            return entry
        # Else it ties with the fastest and with what that beats: it has proven nothing.
    return fastest


def complexity(plan: Plan) -> tuple[int, int]:
    """What a tie goes by: how many partitions, and how many of them mix int8 and float inside (`-float`) or are rewritten."""
    targets = [partition.target for partition in plan.partitions]
    return len(targets), sum(bool(positions_of(t) or forms_of(t)) for t in targets)


def residuals(entries: Sequence[TimedPlan]) -> dict[tuple[int, Target], float]:
    """Time of each partition inside the plans that ran, in microseconds; the median over plans.

    Args:
        entries: the baseline first, at whose pace all times are told.
    """
    seen: dict[tuple[int, Target], list[float]] = {}
    for entry in entries:
        if entry.timed:
            whole_us = entry.ratio * entries[0].latency_us
            steps_us = entry.step_us if len(entry.plan.partitions) > 1 else (entry.latency_us,)
            for partition, step_us in zip(entry.plan.partitions, steps_us, strict=True):
                us = step_us * whole_us / entry.latency_us
                seen.setdefault((partition.nodes, partition.target), []).append(us)
    return {key: statistics.median(times) for key, times in seen.items()}


def pace(singles: Sequence[TimedPlan], baseline: TimedPlan) -> float:
    """What single targets take in comparisons over what they took when they were measured, each at its own moment."""
    times = [
        e.ratio * baseline.latency_us / e.predicted_us for e in singles if e.timed and e.predicted_us
    ]
    return statistics.median(times) if times else 1.0


def border_surplus_us(mixed: Sequence[TimedPlan], known_us: float) -> float:
    """What each border of mixed plans took beyond what was promised; the lower median.

    It is never negative: a plan that ran faster than promised teaches nothing about borders.

    Args:
        mixed: the plans.
        known_us: what the baseline took at the pace of the promises.
    """
    surplus = [
        (entry.ratio * known_us - entry.predicted_us) / (len(entry.plan.partitions) - 1)
        for entry in mixed
        if entry.timed and entry.predicted_us is not None and len(entry.plan.partitions) > 1
    ]
    return max(0.0, statistics.median_low(surplus)) if surplus else 0.0

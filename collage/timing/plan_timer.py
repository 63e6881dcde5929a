"""Times whole plans against each other, and keeps what came of it.

Terms: the *baseline* takes part in every comparison, so that results of different minutes compare. The first plan
that was timed and ran is the baseline.

Invariant: a plan that is returned was timed here.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from collage.backends.machine.load import QUIET_SHARE, cores
from collage.deadline import NO_DEADLINE, Deadline
from collage.events import Event, Listener
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.tensor import TensorSpec
from collage.runner import Runner
from collage.timing.interleaved import time_plans
from collage.timing.request import (
    NO_TIME,
    PlanStep,
    PlanSteps,
    PlanTiming,
    TimingRequest,
)
from collage.timing.standings import Standings
from collage.timing.timed_plan import TimedPlan

# So many rounds judge, and a comparison of fewer is a screening. More say little: builds differ by more than rounds do.
JUDGING_ROUNDS = 12
# A comparison may take so long to compile plans even when the time is up.
_LEAST_S = 5.0
# One plan may take so long to compile however late it is.
_LEAST_BUILD_S = 10.0
# Of rounds that do not count, such a share is told.
_WORTH_A_WARNING = 0.1


class PlanTimer:
    """Times plans of one model, and keeps what came of it in their entries, which nobody else changes.

    Args:
        regions: sub-models of partitions.
        template: a comparison without plans and regions: samples, expected outputs, metric and limits.
        listener: is told about every comparison.
        cancel: stops the child that is timing.
        eligible: whether a plan may be returned; baselines that break a constraint are timed only.
        tolerance: plans with a larger error are timed where the template lets them, but never returned;
            None for no bound.
        runner: where plans run.
        plan_s: seconds that one plan of a comparison takes, as long as none was timed.
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
        plan_s: float = 0.0,
    ) -> None:
        self._tolerance = tolerance
        self._runner = runner or Runner()
        self._eligible = eligible
        self._regions = regions
        self._template = template
        self._listener = listener
        self._cancel = cancel
        self.entries: list[TimedPlan] = []
        self.seconds = self.latest_s = 0.0  # of all comparisons, and of the latest
        self.plan_s = plan_s
        self._skipped: dict[str, None] = {}
        self._comparisons = 0
        self._rounds = self._left_out = 0
        self._loads: list[
            tuple[float, float]
        ] = []  # of each comparison its seconds and the load of others
        self._waited_s = 0.0
        self._standings: tuple[object, Standings] = ((), Standings())
        self._seen_us: tuple[float, ...] = ()

    def expected_s(self, count: int) -> float:
        """Seconds that a comparison of so many plans takes, the baseline among them, by the latest one."""
        return self.plan_s * count

    def skip(self, what: str) -> None:
        """Tell that something is left out since it does not fit into the time limit; the report says it too."""
        self._skipped[what] = None
        self.say(f"the time is up: {what} left out")

    @property
    def skipped(self) -> tuple[str, ...]:
        """What was left out for lack of time."""
        return tuple(self._skipped)

    @property
    def threads(self) -> int:
        """How many threads one call may use."""
        return self._template.threads

    @property
    def standings(self) -> Standings:
        """How the plans compare by now."""
        now = [(id(entry), len(entry.timings), entry.refused) for entry in self.entries]
        if self._standings[0] != now:
            self._standings = now, Standings(tuple(self.entries), self._tolerance, self._eligible)
        return self._standings[1]

    def allows(self, plan: Plan) -> bool:
        """True when this plan may be returned."""
        return self._eligible(plan)

    def predict(self, entry: TimedPlan, predicted_us: float) -> None:
        """Note the predicted latency of a plan that was timed before."""
        entry.predicted_us = predicted_us

    def refuse(self, entry: TimedPlan, reason: str) -> Standings:
        """Leave a plan out that the caller's own check did not let pass; how the others compare."""
        entry.refused = reason
        return self.standings

    def time(
        self,
        plans: Sequence[TimedPlan],
        again: Sequence[TimedPlan] = (),
        rounds: int = JUDGING_ROUNDS,
        needed: int = 0,
        deadline: Deadline = NO_DEADLINE,
        share_of_time: float = 1.0,
    ) -> Standings:
        """Time new plans together with the baseline and some known ones.

        Args:
            plans: those that were not timed yet; in the first comparison the first is the baseline.
            again: known plans to time once more beside them.
            rounds: blocks per plan at the most.
            needed: so many of the new plans are compiled however late it is, and the known ones.
            deadline: after its search nothing else is compiled.
            share_of_time: of what is left until then, for compiling.

        Returns:
            How all plans compare after it.
        """
        begin = time.monotonic()
        known = self.entries[:1] + [entry for entry in again if entry is not self.entries[0]]
        entries = [*known, *plans]
        names = ", ".join(entry.name for entry in entries)
        count = "1 plan" if len(entries) == 1 else f"{len(entries)} plans in turn"
        self.say(f"timing {count}: {names}")
        request = replace(
            self._request(entries),
            rounds=rounds,
            needed=max(1, len(known) + needed),
        )
        with self._runner.alone(self._cancel):
            spare_s = deadline.compare_left_s - self.expected_s(request.needed)
            least_s = max(0.0, min(_LEAST_S, spare_s))
            request = replace(
                request,
                prepare_s=max(least_s, share_of_time * deadline.left_s),
                silence_s=min(request.silence_s, max(_LEAST_BUILD_S, deadline.end_left_s)),
            )
            timings = time_plans(request, self._cancel, self._runner.run)
        baseline = self._keep(entries, timings, screening=rounds < JUDGING_ROUNDS)
        self.entries.extend(plans)
        if not self.entries[0].ratios:
            # A plan that failed cannot be the baseline of later comparisons.
            self.entries.sort(key=lambda entry: entry.timings.get(self._comparisons) is not baseline)
        self._comparisons += 1
        self.latest_s = time.monotonic() - begin
        built = sum(timing.failure != NO_TIME for timing in timings)
        self.plan_s = self.latest_s / max(1, built)
        self.seconds += self.latest_s
        self._tell(entries)
        return self.standings

    def _request(self, entries: Sequence[TimedPlan]) -> TimingRequest:
        """What a process is asked to time."""
        regions = {}
        plans = []
        for entry in entries:
            steps = []
            for partition in entry.plan.partitions:
                model = (entry.regions or self._regions).of(partition)
                name = str(model.path.parent)
                regions[name] = model
                steps.append(
                    PlanStep(name, partition.target, *map(self._sized, (model.inputs, model.outputs)))
                )
            plans.append(PlanSteps(tuple(steps), entry.plan.lanes))
        return replace(
            self._template,
            plans=tuple(plans),
            regions=regions,
            backwards=self._comparisons % 2 == 1,
            seen_us=self._seen_us,
            patience_s=self._patience_left_s(),
        )

    def _sized(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Values at the border of a sub-model, with the shapes that the timed model has where its own are open."""
        known = self._regions.model.index.values
        return tuple(spec if spec.is_static else known.get(spec.name, spec) for spec in specs)

    def _patience_left_s(self) -> float:
        """How long the next comparison may wait for other processes: not at all after a quiet one."""
        if self._loads and self._loads[-1][1] <= QUIET_SHARE * len(cores()):
            return 0.0
        return max(0.0, self._template.patience_s - self._waited_s)

    def _keep(
        self, entries: Sequence[TimedPlan], timings: Sequence[PlanTiming], screening: bool
    ) -> PlanTiming:
        """Add a comparison to what is known of its plans; the baseline's part of it."""
        baseline = next((timing for timing in timings if timing.samples_us), PlanTiming())
        self._seen_us = baseline.seen_us or self._seen_us
        self._rounds += len(baseline.samples_us) + baseline.left_out
        self._left_out += len(baseline.samples_us) if baseline.far else baseline.left_out
        self._waited_s += baseline.quiet_s
        self._loads.append((sum(baseline.samples_us), baseline.others))
        if baseline.quiet_s >= 1:
            self.say(f"waited {baseline.quiet_s:.0f} s for other processes to leave the cores alone")
        for entry, timing in zip(entries, timings, strict=True):
            if screening:
                entry.screenings.add(self._comparisons)
            pairs = zip(timing.samples_us, baseline.samples_us, strict=False)
            entry.timings[self._comparisons] = timing
            entry.baseline_ratios[self._comparisons] = [mine / other for mine, other in pairs]
        return baseline

    def warnings(self) -> tuple[str, ...]:
        """What the user should know of how plans were timed."""
        found = []
        total = sum(weight for weight, _ in self._loads)
        others = sum(weight * load for weight, load in self._loads) / total if total else 0.0
        count = len(cores())
        busy = others > QUIET_SHARE * count > 0
        if busy:
            waited = f" It waited {self._waited_s:.0f} s for them." if self._waited_s >= 1 else ""
            found.append(
                f"other processes used {others:.1f} of {count} cores while plans were timed; rounds that they disturbed count "
                f"less.{waited} On a quiet machine the answer is surer: stop them and tune again with --fresh, or wait for "
                "them with --wait-for-quiet SECONDS"
            )
        if self._left_out > _WORTH_A_WARNING * self._rounds and not busy:
            found.append(
                f"in {self._left_out} of {self._rounds} rounds the host of this virtual machine had moved its cores, which makes "
                "runtimes slower by different factors; such rounds count only where there are no others (docs/measurement.md)"
            )
        return tuple(found)

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
                "ratio": self.standings.ratio(entry) if entry.timed else None,
                "failure": entry.failure,
            }
            self._listener(Event("end_to_end", f"{entry.name}: {said}", data=data))

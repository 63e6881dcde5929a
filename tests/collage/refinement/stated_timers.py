"""Timers whose latencies somebody stated; no clock, no runtime."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from collage.costs.estimates import Estimates
from collage.deadline import NO_DEADLINE, Deadline
from collage.events import ignore
from collage.partitioner.candidate import Candidate, bits
from collage.partitioner.rules.target_spec import TargetSpec
from collage.partitioner.search.constraints import Constraints
from collage.refinement.comparisons import Comparisons
from collage.refinement.exploration import lay_out
from collage.refinement.local_search import LocalSettings
from collage.refinement.refinement import Refinement
from collage.timing.plan_timer import PlanTimer
from collage.timing.request import PlanTiming
from collage.timing.standings import Standings
from collage.timing.timed_plan import TimedPlan
from tests.collage.stated_world import INFINITE, TARGETS, StatedCosts, World

SINGLES = dict.fromkeys(TARGETS, 1000.0)


class StatedTimer(PlanTimer):
    """Comparisons whose times somebody stated: by plan, one for each comparison in which it takes part.

    Two numbers for one comparison are the times of odd and of even rounds. Other processes disturb all rounds of the
    first so many comparisons.
    """

    def __init__(
        self, stated: Mapping[str, Sequence[float | tuple[float, float]]], disturbed: int = 0
    ) -> None:
        self._disturbed = disturbed
        self.said: list[str] = []
        super().__init__(None, None, lambda event: self.said.append(event.message))
        self._stated = {name: list(times) for name, times in stated.items()}
        self.comparisons: list[set[str]] = []

    def time(
        self, plans: Sequence[TimedPlan], again: Sequence[TimedPlan] = (), **_: object
    ) -> Standings:
        known = self.entries[:1] + [entry for entry in again if entry is not self.entries[0]]
        for entry in [*known, *plans]:
            times = self._stated.get(entry.name)
            now = times.pop(0) if times else 1000.0
            samples_us = (now if isinstance(now, tuple) else (now, now)) * 8
            parts = len(entry.plan.partitions)
            steps_us = (statistics.median(samples_us) / parts,) * parts
            waits = (1.0 if len(self.comparisons) < self._disturbed else 0.0,) * 16
            timing = PlanTiming(samples_us, steps_us, 0.0, waits=waits)
            entry.timings[len(self.comparisons)] = timing
            entry.baseline_ratios[len(self.comparisons)] = [sample / 1000.0 for sample in samples_us]
        self.entries.extend(plans)
        self.comparisons.append({entry.name for entry in [*known, *plans]})
        return self.standings


def refined(
    timer: PlanTimer,
    world: World,
    kind: type[Refinement] = Refinement,
    deadline: Deadline = NO_DEADLINE,
) -> TimedPlan:
    costs = StatedCosts(world.truth, most=len(world.candidates))
    solution = world.search(costs).run(2, INFINITE)
    specs = [TargetSpec(target, "graph", lambda index, node: None) for target in TARGETS]
    local = LocalSettings() if kind is not Refinement else None
    comparisons = Comparisons.of(world.model, specs, Constraints(), timer, SINGLES, deadline)
    late = world.search(costs, deadline_s=0.0)
    return kind(comparisons, local).refined(late, solution, 2)


def laid_out(timer: PlanTimer, slowest_us: float) -> tuple[Comparisons, list[Candidate]]:
    """Comparisons whose targets were laid out, the last one as slow as stated."""
    world = World(24, 3)
    us = dict(zip(TARGETS, (1000.0, 1500.0, slowest_us), strict=True))
    comparisons = Comparisons.of(world.model, [], Constraints(), timer, us)
    comparisons.open(())
    estimates = Estimates(world.model.index)
    for target in TARGETS:
        estimates.learn(target, dict(enumerate(world.node_us[target])))
    return lay_out(comparisons, world.candidates, estimates, us)


class TrueTimer(PlanTimer):
    """Comparisons whose times are the world's: of every partition, and 40 µs for each but the first."""

    def __init__(self, world: World) -> None:
        super().__init__(None, None, ignore)
        self._world = world
        self.comparisons: list[int] = []

    def time(
        self, plans: Sequence[TimedPlan], again: Sequence[TimedPlan] = (), **_: object
    ) -> Standings:
        known = self.entries[:1] + [entry for entry in again if entry is not self.entries[0]]
        for entry in [*known, *plans]:
            parts = entry.plan.partitions
            steps_us = tuple(self._inside_us(p) + (40.0 if len(parts) > 1 else 0.0) for p in parts)
            entry.timings[len(self.comparisons)] = PlanTiming((sum(steps_us),) * 8, steps_us, 0.0)
        baseline_us = [*known, *plans][0].latency_us
        for entry in [*known, *plans]:
            entry.baseline_ratios[len(self.comparisons)] = [entry.latency_us / baseline_us] * 8
        self.entries.extend(plans)
        self.comparisons.append(len(plans))
        return self.standings

    def _inside_us(self, part: Candidate) -> float:
        return sum(self._world.node_us[part.target][i] for i in bits(part.nodes))

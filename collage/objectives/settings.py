"""Which settings are worth measuring: the plans that were fast for one request, shared out over the cores."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from collage.backends.options import THREADS
from collage.backends.registry import backend_of
from collage.model.preparation import mixes_rows
from collage.partitioner.candidate import Candidate, Instances, Plan
from collage.partitioner.target import Target
from collage.timing.timed_plan import TimedPlan

# Beside the winner and the single targets, so many of the fastest plans are measured.
_MOST_MIXES = 2
# A single target so many times as slow as the winner is not measured.
_FAR_BEHIND = 4.0
# So many of the best settings are also measured with several requests a call.
_MOST_JOINED = 2
# A stage with a larger share of the time keeps the others idle.
_LONGEST_STAGE = 0.85
# Rows of a call that are tried, and how long a call may take where no bound is given.
_ROWS = (4, 8)
_LONGEST_CALL_US = 2e6


@dataclass(frozen=True)
class Setting:
    """A plan with its number of instances and the threads of each.

    Args:
        plan: what every instance runs.
        name: of the plan in the report.
        instances: how many requests run at once.
        threads: of one call.
        rows: how many requests one call computes.
        stages: of a pipeline, how many partitions each has.
    """

    plan: Plan
    name: str
    instances: int
    threads: int
    rows: int = 1
    stages: tuple[int, ...] = ()

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes two settings the same: a target has no more threads than an instance."""
        parts = frozenset(
            (part.nodes, _within(part.target, self.threads)) for part in self.plan.partitions
        )
        lanes = min(self.plan.lanes, self.threads) if self.instances > 1 else self.plan.lanes
        return parts, lanes, self.instances, self.threads, self.rows, self.stages

    @property
    def complexity(self) -> tuple[int, int]:
        """Of two settings that are nearly as good the less complex one is chosen.

        Instances do not count: more of them with fewer threads wait less for each other on a busy machine.
        """
        return self.rows, len(self.plan.partitions)

    def planned(self, cores: int) -> Instances:
        """What the plan says of it."""
        return Instances(self.instances, self.threads, cores, self.rows, self.stages)


def settings(
    objective: str,
    winner: TimedPlan,
    entries: Sequence[TimedPlan],
    cores: int,
    most_threads: int | None = None,
) -> list[Setting]:
    """Settings to measure, the most promising first; the winner for one request at a time is the first.

    Args:
        objective: instances cost memory, so there is one where memory alone counts.
        winner: the fastest plan for one request.
        entries: other plans that may be returned, the fastest first.
        cores: shared out among instances.
        most_threads: that one request may have, where the caller says so.
    """
    divisions = [(1, cores)] if objective == "memory" else _divisions(cores)
    limit = _FAR_BEHIND * winner.latency_us
    # Emitting knows the tuner's own sub-models only.
    near = [e for e in entries if e is not winner and e.regions is None and e.latency_us <= limit]
    singles = [e for e in near if len(e.plan.partitions) == 1]
    mixes = [e for e in near if len(e.plan.partitions) > 1][:_MOST_MIXES]
    found: dict[tuple[object, ...], Setting] = {}
    for entry in (winner, *singles, *mixes):
        for instances, share in divisions:
            threads = min(share, most_threads or share)
            for plan in (entry.plan, *_served_otherwise(entry.plan, instances)):
                setting = Setting(plan, _name(entry, plan), instances, threads)
                found.setdefault(setting.identity, setting)
    lines = [
        Setting(entry.plan, entry.name, count + 1, cores // count, stages=stages)
        for entry in (winner, *mixes)
        for count, _ in divisions
        if count > 1 and (stages := stages_of(entry, count)) and objective != "memory"
    ]
    return [*found.values(), *lines]


def joined(ran: Sequence[Setting], rows: Sequence[int]) -> list[Setting]:
    """Settings with calls of several requests: forms of the best few that ran.

    Args:
        ran: settings with one request a call, the best first.
        rows: how many requests one call may compute. Plans in which they would change each other's rounding
            get none.
    """
    alone = (each for each in ran if not each.stages and each.rows == 1)
    best = list(itertools.islice((each for each in alone if not mixes_rows(each.plan)), _MOST_JOINED))
    return [replace(each, rows=count) for each in best for count in rows]


def stages_of(entry: TimedPlan, count: int) -> tuple[int, ...]:
    """How many partitions each stage of a pipeline has, so that the longest stage is short.

    Returns:
        Nothing where partitions are too few, may run at once, or one takes nearly all the time.
    """
    times = entry.step_us
    if len(times) < count or entry.plan.lanes > 1:
        return ()
    best = min(
        ([0, *cuts, len(times)] for cuts in itertools.combinations(range(1, len(times)), count - 1)),
        key=lambda ends: max(sum(times[a:b]) for a, b in itertools.pairwise(ends)),
    )
    pairs = list(itertools.pairwise(best))
    if max(sum(times[a:b]) for a, b in pairs) > _LONGEST_STAGE * sum(times):
        return ()
    return tuple(b - a for a, b in pairs)


def row_counts(winner: TimedPlan, bound_us: float | None) -> list[int]:
    """How many rows of a call are worth measuring beside one: a call must keep the bound, as far as is known."""
    limit_us = _LONGEST_CALL_US if bound_us is None else bound_us
    return [count for count in _ROWS if count * winner.latency_us <= limit_us]


def _divisions(cores: int) -> list[tuple[int, int]]:
    """Instances and threads of each: all cores for one, one core for each, and what lies between."""
    counts = [1, cores]
    counts += [1 << power for power in range(1, cores.bit_length()) if 1 << power < cores]
    return [(count, cores // count) for count in dict.fromkeys(counts)]


def _served_otherwise(plan: Plan, instances: int) -> list[Plan]:
    """The same whole model on forms of its target that may serve several requests faster."""
    if instances == 1 or len(plan.partitions) > 1:
        return []
    (part,) = plan.partitions
    return [
        Plan((Candidate(part.nodes, target, part.rule),))
        for target in backend_of(part.target).at_once(part.target)
    ]


def _name(entry: TimedPlan, plan: Plan) -> str:
    return entry.name if plan is entry.plan else f"single {plan.partitions[0].target}"


def _within(target: Target, threads: int) -> Target:
    given = target.option(THREADS.name, THREADS.default)
    count = threads if given == THREADS.default else min(int(given), threads)
    return target.with_options(**{THREADS.name: str(count)})

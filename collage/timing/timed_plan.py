"""A plan that was timed, and how two of them compare.

Invariant: what was not timed in the same rounds is never compared by its microseconds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress

from collage.backends.measurement.ratio import Ratio, compare_builds
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.target import Target
from collage.timing.request import PlanTiming, told_failure

Identity = tuple[int, frozenset[tuple[int, Target]]]
"""What makes two plans the same."""

# So many comparisons judge a proposal without the one that chose it.
_ENOUGH = 2
# So many rounds without disturbance judge without the others.
_ENOUGH_PAIRS = 3


@dataclass
class TimedPlan:
    """A plan with all that is known about it; only `PlanTimer` adds to that once it was timed.

    Args:
        plan: the plan.
        name: `single openvino`, `greedy`, `searched 1` …
        predicted_us: what the search predicted; None where it predicted nothing.
        timings: by the number of the comparison.
        baseline_ratios: its samples over the baseline's of the same round, by the number of the comparison.
        challenges: the plan that it is a small change of.
        refused: why the caller's own check did not let it pass, or None.
        regions: sub-models of its partitions, where they are not the timer's.
        screenings: the comparisons that were too short to judge.
        proposed: whether a search proposed it, as one of many, so that its first comparison chose it.
    """

    plan: Plan
    name: str
    predicted_us: float | None = None
    timings: dict[int, PlanTiming] = field(default_factory=dict)
    baseline_ratios: dict[int, Sequence[float]] = field(default_factory=dict)
    challenges: TimedPlan | None = None
    refused: str | None = None
    regions: RegionFiles | None = None
    screenings: set[int] = field(default_factory=set)
    proposed: bool = False

    @property
    def counting(self) -> list[int]:
        """The comparisons that say how fast it is; those with the cores far apart only where there is no other."""
        ran = [comparison for comparison, timing in self.timings.items() if timing.samples_us]
        return [comparison for comparison in ran if not self.timings[comparison].far] or ran

    @property
    def judging(self) -> list[int]:
        """The comparisons that count and judge: no screening, and not the one that chose it, where there are others."""
        judging = [c for c in self.counting if c not in self.screenings] or self.counting
        later = [c for c in judging if not self.proposed or c != self.first_comparison]
        return later if len(later) >= _ENOUGH else judging

    @property
    def first_comparison(self) -> int | None:
        """The first comparison that was no screening."""
        return min((c for c in self.timings if c not in self.screenings), default=None)

    @property
    def ran_in_quiet(self) -> bool:
        """True where enough rounds of a comparison were not disturbed by other processes, with the cores near each other."""
        timings = [self.timings[comparison] for comparison in self.counting]
        rounds = [timing.quiet for timing in timings if not timing.far]
        return any(sum(quiet) >= min(_ENOUGH_PAIRS, len(quiet)) for quiet in rounds)

    @property
    def samples_us(self) -> list[float]:
        """Its samples of the comparisons that count."""
        return [us for comparison in self.counting for us in self.timings[comparison].samples_us]

    @property
    def ratios(self) -> list[float]:
        """Its samples over the baseline's, of the comparisons that count."""
        return [ratio for comparison in self.counting for ratio in self.baseline_ratios[comparison]]

    @property
    def failure(self) -> str | None:
        """Why it could not be timed, or None."""
        return told_failure([*(timing.failure for timing in self.timings.values()), self.refused])

    @property
    def failed_finally(self) -> bool:
        """True when it need not be tried at other sizes either."""
        return any(timing.is_final for timing in self.timings.values())

    @property
    def timed(self) -> bool:
        """True when it ran, verified, and was timed."""
        return bool(self.ratios) and self.failure is None

    @property
    def ratio(self) -> float:
        """Median time relative to the baseline."""
        return statistics.median(self.ratios)

    @property
    def error(self) -> float | None:
        """The largest error seen."""
        return max((t.error for t in self.timings.values() if t.error is not None), default=None)

    @property
    def exactness(self) -> float:
        """The largest error seen by the metric `max`, whichever the caller's is; infinite where none was."""
        seen = [t.exactness for t in self.timings.values() if t.exactness is not None]
        return max(seen, default=math.inf)

    @property
    def step_us(self) -> tuple[float, ...]:
        """Median time of each partition inside the running plan: of the newest comparison, at the pace of all."""
        told = [
            self.timings[comparison] for comparison in self.counting if self.timings[comparison].step_us
        ]
        if not told:
            return ()
        newest = told[-1]
        pace = self.latency_us / newest.latency_us
        return tuple(step_us * pace for step_us in newest.step_us)

    @property
    def copy_us(self) -> Mapping[tuple[str, int], float]:
        """Times of copies between memories by value and reader, of the newest comparison that counts."""
        newest = self.timings[self.counting[-1]].copy_us if self.counting else ()
        return {(name, reader): us for name, reader, us in newest}

    @property
    def latency_us(self) -> float:
        """Median over the rounds of all comparisons that count."""
        return statistics.median(self.samples_us)


def speedup(slow: TimedPlan, fast: TimedPlan) -> Ratio:
    """How many times slower one plan is than another, from the comparisons in which both were timed.

    Each comparison built both anew, in a process of its own.
    """
    builds = [
        _quiet_pairs(slow.timings[comparison], fast.timings[comparison])
        for comparison in shared_comparisons(slow, fast)
    ]
    # They never met: both were timed beside the baseline, so their ratios to it are compared.
    pairs = builds or [list(zip(slow.ratios, fast.ratios, strict=False))]
    return compare_builds([([a for a, _ in own], [b for _, b in own]) for own in pairs])


def _quiet_pairs(one: PlanTiming, other: PlanTiming) -> list[tuple[float, float]]:
    """The samples of rounds in which neither was disturbed, or all where these are too few."""
    pairs = list(zip(one.samples_us, other.samples_us, strict=False))
    quiet = [a and b for a, b in zip(one.quiet, other.quiet, strict=False)]
    return list(compress(pairs, quiet)) if sum(quiet) >= _ENOUGH_PAIRS else pairs


def wins(fast: TimedPlan, slow: TimedPlan) -> tuple[int, int]:
    """In how many comparisons one plan was faster than another, and how many say how they compare."""
    leads = [
        statistics.median(a / b for a, b in _quiet_pairs(slow.timings[c], fast.timings[c]))
        for c in shared_comparisons(slow, fast)
    ]
    return sum(lead > 1.0 for lead in leads), len(leads)


def shared_comparisons(one: TimedPlan, other: TimedPlan) -> list[int]:
    """The comparisons that say how two plans compare: both were timed, and not just in a screening.

    A screening chooses plans for a longer comparison, which then judges alone: a chosen plan was lucky, as a rule. So was
    a proposal that runs again because its first comparison made it look fast: where two later ones are, these judge.
    Comparisons with the cores far apart say something only where no other does.
    """
    shared = [c for c in one.timings if c in other.timings]
    timed = [c for c in shared if one.timings[c].samples_us and other.timings[c].samples_us]
    judging = [c for c in timed if c not in one.screenings] or timed
    near = [c for c in judging if not one.timings[c].far] or judging
    chose = {entry.first_comparison for entry in (one, other) if entry.proposed}
    later = [c for c in near if c not in chose]
    return later if len(later) >= _ENOUGH else near


def clearly_faster(fast: TimedPlan, slow: TimedPlan) -> bool:
    """True when the confidence interval of the ratio of two plans lies above one as a whole."""
    return speedup(slow, fast).low > 1.0


def identity(plan: Plan) -> Identity:
    """What makes two plans the same, whatever proposed them."""
    return plan.lanes, frozenset((p.nodes, p.target) for p in plan.partitions)


def distinct(entries: Sequence[TimedPlan]) -> list[TimedPlan]:
    """The first entry of each plan."""
    kept: dict[Identity, TimedPlan] = {}
    for entry in entries:
        kept.setdefault(identity(entry.plan), entry)
    return list(kept.values())

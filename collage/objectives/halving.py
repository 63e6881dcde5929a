"""Finds the best of many settings by successive halving: all are measured briefly, and the better half longer.

The last few run in turn, several times, each time in a new process. They are compared within each round, so that the
machine's pace does not decide.

Source: successive halving as in Jamieson and Talwalkar, "Non-stochastic Best Arm Identification" (2016).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from collage.objectives.goal import Goal
from collage.objectives.settings import Setting
from collage.objectives.trial import Trial

Measure = Callable[[Setting, float], Trial]

# Seconds of a trial: of all settings, of the better half, and of the last few in turn.
_FIRST_S, _SECOND_S, _LAST_S = 0.5, 1.0, 2.0
_FINALISTS, _ROUNDS = 3, 3
# Settings that are nearly as good differ by less than builds do.
_NEARLY = 0.97


@dataclass
class Tried:
    """A setting with its trials; the last rounds alone judge where there are some."""

    setting: Setting
    trials: list[Trial] = field(default_factory=list)
    last: list[Trial] = field(default_factory=list)

    @property
    def failure(self) -> str | None:
        """Why it cannot be used, or None."""
        return next((t.failure for t in (*self.trials, *self.last) if t.failure is not None), None)

    @property
    def measured(self) -> bool:
        """True when it ran."""
        return self.failure is None and bool(self.trials)

    @property
    def result(self) -> Trial:
        """The medians of the trials that judge."""
        judging = self.last or self.trials[-1:]
        return Trial(
            throughput=statistics.median(t.throughput for t in judging),
            median_us=statistics.median(t.median_us for t in judging),
            p99_us=statistics.median(t.p99_us for t in judging),
            requests=sum(t.requests for t in judging),
            # What was compiled once is read from the cache later, so the least is what loading takes.
            peak_rss_bytes=min(t.peak_rss_bytes for t in (*self.trials, *self.last)),
            load_s=min(t.load_s for t in (*self.trials, *self.last)),
            error=max(
                (t.error for t in (*self.trials, *self.last) if t.error is not None), default=None
            ),
        )


def halve(
    settings: Sequence[Setting],
    measure: Measure,
    goal: Goal,
    fits: Callable[[], bool] = lambda: True,
    more: Callable[[Sequence[Setting]], Sequence[Setting]] = lambda ran: (),
) -> list[Tried]:
    """Measure settings until the best is known or the time is up.

    Args:
        settings: the most promising first; the first is measured however late it is.
        measure: makes a trial of so many seconds.
        goal: which trial is better.
        fits: whether there is time for one more trial.
        more: settings that follow from those that ran, the best first; they join before the first half leaves.

    Returns:
        Those that were measured or failed, in the order given.
    """
    tried = [Tried(setting) for setting in settings]
    alive = list(tried)
    # Memory counts once everything is compiled, so all are measured twice.
    halvings = (0.0, _FIRST_S) if goal.counts_memory else (_FIRST_S, _SECOND_S)
    for number, seconds in enumerate(halvings):
        for each in alive:
            if fits() or (each is tried[0] and not each.trials):
                each.trials.append(measure(each.setting, seconds))
        ran = [each for each in alive if each.measured and len(each.trials) > number]
        if number == 0:
            born = [Tried(s) for s in more([each.setting for each in _sorted(ran, goal)])]
            for each in born:
                if fits():
                    each.trials.append(measure(each.setting, seconds))
            tried += born
            ran += [each for each in born if each.measured]
        if not ran or not fits():
            return [each for each in tried if each.trials]
        keeps_all = goal.counts_memory and number == 0
        alive = ran if keeps_all else _better_half(ran, goal)
    _in_turn(sorted(alive, key=lambda each: goal.order(each.result))[:_FINALISTS], measure, fits)
    return [each for each in tried if each.trials]


def best(tried: Sequence[Tried], goal: Goal) -> Tried | None:
    """The setting to return; None where none ran.

    Those that were measured in turn go before the others, and among nearly equal ones the least complex.
    """
    ran = [each for each in tried if each.measured]
    pool = [each for each in ran if each.last] or ran
    if not pool:
        return None
    within = [each for each in pool if goal.excess(each.result) <= 1.0]
    if not within:
        return min(pool, key=lambda each: goal.excess(each.result))
    values = _values(within, goal)
    enough = _NEARLY * max(values)
    near = [i for i, value in enumerate(values) if value >= enough]
    return within[min(near, key=lambda i: (within[i].setting.complexity, -values[i]))]


def _values(pool: Sequence[Tried], goal: Goal) -> list[float]:
    """The value of each, by rounds where they ran in turn: over the geometric mean of its round."""
    rounds = min(len(each.last) for each in pool)
    if not rounds:
        return [goal.value(each.result) for each in pool]
    table = [[goal.value(each.last[i]) for i in range(rounds)] for each in pool]
    means = [math.exp(statistics.fmean(map(math.log, column))) for column in zip(*table, strict=True)]
    return [statistics.median(v / m for v, m in zip(row, means, strict=True)) for row in table]


def _better_half(ran: Sequence[Tried], goal: Goal) -> list[Tried]:
    count = max(_FINALISTS, math.ceil(len(ran) / 2))
    return _sorted(ran, goal)[:count]


def _sorted(ran: Sequence[Tried], goal: Goal) -> list[Tried]:
    """Those that ran, the best first."""
    return sorted(ran, key=lambda each: goal.order(each.trials[-1]))


def _in_turn(finalists: Sequence[Tried], measure: Measure, fits: Callable[[], bool]) -> None:
    """Measure the last few in whole rounds, every other one backwards."""
    for number in range(_ROUNDS):
        made: list[tuple[Tried, Trial]] = []
        for each in finalists if number % 2 == 0 else reversed(finalists):
            if not fits():
                return
            made.append((each, measure(each.setting, _LAST_S)))
        for each, trial in made:
            each.last.append(trial)

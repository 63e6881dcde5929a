"""Errors of mixes in units of what a task allows: 1 is the whole budget.

Every run of a mix has a *proxy*, the mean relative error of its outputs, and a drop of the metric with
its standard error. The *curve* says which drop a proxy leads to: a power law, fitted to the mixes that
ran on all searched samples. A drop that is known well counts by itself, as of a fine metric on a few
samples; else the curve says more. An error is the drop that follows, brought back to the scale of the
proxy, since squares of proxies add up (`collage.accuracy.error_model`).

Invariant: the curve's upper end is used, so that few samples make it careful.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collage.accuracy.error_model import ReducedNodes
from collage.accuracy.task import Task, TaskJudge, TaskSamples
from collage.backends.numerics.comparison import Expected, Ranged, is_measured
from collage.metrics.drop import standard_error
from collage.metrics.metric import Metric
from collage.partitioner.errors import BadInputError

_POWERS = (1.0, 1.5, 2.0)
# Of a predicted drop: curves of mixes differ by so much.
_SPREAD = 0.5
# A proxy so many times the largest one that was seen is not believed in.
_BEYOND = 1.5
# Before anything is measured, this proxy counts as the budget.
_FIRST_LIMIT = 0.02
# Where nothing is allowed, this share of a sample is, or this much of a metric that has no worst.
_LEAST_SHARE, _LEAST_DROP = 0.5, 1e-12
# Reference outputs of more bytes are read anew for each mix.
_MOST_KEPT_BYTES = 128 << 20


@dataclass(frozen=True)
class SearchTask:
    """What a search of mixes is told of a task."""

    metric: Metric
    samples: TaskSamples
    allowed: float  # drop, as `Metric.distance` has it


def search_task(task: Task | None) -> SearchTask | None:
    """What a search is told of a run's task."""
    if task is None:
        return None
    return SearchTask(task.metric, task.searched, TaskJudge(task, task.searched).allowed_distance)


@dataclass(frozen=True)
class MixRun:
    """What was found of a mix."""

    proxy: float
    worse: float  # the drop, as `Metric.distance` has it
    sigma: float  # its standard error


@dataclass(frozen=True)
class Curve:
    """Drop by proxy: `scale * proxy ** power`."""

    scale: float
    power: float
    believed: float = math.inf  # the largest proxy that it is believed for

    @classmethod
    def fitted(cls, runs: Sequence[MixRun], allowed: float) -> Curve:
        """The power law that explains the runs best, its scale one standard error higher."""
        known = [run for run in runs if 0 < run.proxy < math.inf and math.isfinite(run.worse)]
        if not known:
            return cls(allowed / _FIRST_LIMIT, 1.0)
        found = []
        for power in _POWERS:
            x = np.array([run.proxy**power for run in known])
            y = np.array([run.worse for run in known])
            # Small drops count most: they are where the limit lies.
            variance = np.array([run.sigma**2 + (_SPREAD * max(run.worse, 0.0)) ** 2 for run in known])
            weight = 1.0 / np.maximum(variance, 1e-18)
            precision = float((x * x * weight).sum())
            scale = max(0.0, float((x * y * weight).sum()) / precision)
            misfit = float((weight * (y - scale * x) ** 2).sum())
            spread = math.sqrt(max(1.0, misfit / max(1, len(known) - 1)) / precision)
            found.append((misfit, power, scale + spread))
        _, power, scale = min(found)
        return cls(scale, power, _BEYOND * max(run.proxy for run in known))

    def drop(self, proxy: float) -> float:
        """The drop that a proxy leads to."""
        return self.scale * float(proxy**self.power)


class TaskErrors:
    """Turns runs of mixes into errors, and learns the curve."""

    def __init__(self, task: SearchTask) -> None:
        self._task = task
        self.samples = task.samples
        self._kept: list[dict[str, np.ndarray]] = []  # outputs of the reference, where these are small
        if task.samples.expected_file.stat().st_size <= _MOST_KEPT_BYTES:
            self._kept = list(task.samples.reference())
        self._before = task.samples.reference_items(task.metric)
        self.measured: dict[ReducedNodes, MixRun] = {}  # on all searched samples
        least = _LEAST_SHARE / task.samples.count if task.metric.is_bounded else _LEAST_DROP
        self._allowed = max(task.allowed, least)
        self.curve = Curve.fitted((), self._allowed)

    def run(self, made: Iterable[Mapping[str, np.ndarray]], first: int, count: int) -> MixRun:
        """What outputs of consecutive samples say.

        Args:
            made: outputs of each.
            first: position of the first sample.
            count: how many there are.
        """
        which = slice(first, first + count)
        metric, reference = self._task.metric, self._kept[which] or self.samples.reference(which)
        before, after, proxies = self._before[which], [], []
        # One after another: an executor's outputs are overwritten by its next run.
        for number, (own, wanted) in enumerate(zip(made, reference, strict=True)):
            outputs = {name: own[name] for name in wanted}  # a run also gives values in between
            proxies.append(_proxy(outputs, wanted))
            after += self._task.samples.items(metric, [outputs], [wanted], first + number)
        try:
            worse = metric.distance(metric.score(before), metric.score(after))
            sigma = standard_error(metric, before, after)
        except BadInputError:  # too few samples for this metric
            worse, sigma = 0.0, math.inf
        return MixRun(float(np.mean(proxies)), worse if math.isfinite(worse) else math.inf, sigma)

    def learn(self, mix: ReducedNodes, run: MixRun) -> None:
        """Take a run on all searched samples into the curve."""
        self.measured[mix] = run
        self.curve = Curve.fitted(list(self.measured.values()), self._allowed)

    def error(self, run: MixRun) -> float:
        """The error of a run, by its own drop as far as that is known, else by the curve."""
        if not math.isfinite(run.proxy + run.worse):
            return math.inf
        if run.proxy == 0:
            return 0.0
        promised = self.curve.drop(run.proxy)
        doubt = (_SPREAD * promised) ** 2
        own = 0.0 if math.isinf(run.sigma) else doubt / (doubt + run.sigma**2)
        # A gain is no reason to spend more elsewhere: it is luck, most often.
        drop = own * max(run.worse, 0.0) + (1 - own) * promised
        spent = (drop / self._allowed) ** (1 / self.curve.power)
        return float(max(spent, (1 - own) * run.proxy / self.curve.believed))


def _proxy(made: Mapping[str, np.ndarray], wanted: Mapping[str, Expected]) -> float:
    """The largest relative error of an output; for other types and shapes the share that differs."""
    worst = 0.0
    for name, expected in wanted.items():
        value = expected.value if isinstance(expected, Ranged) else np.asarray(expected)
        own = made[name]
        if own.shape != value.shape:
            worst = max(worst, 1.0)
        elif not is_measured(value.dtype):
            worst = max(worst, float(np.mean(own != value)) if value.size else 0.0)
        elif value.size:
            length = float(np.linalg.norm(value.astype(np.float64).reshape(-1)))
            apart = own.astype(np.float64) - value.astype(np.float64)
            distance = float(np.linalg.norm(apart.reshape(-1)))
            if not math.isfinite(distance):
                return math.inf
            worst = max(worst, distance / length if length else distance)
    return worst

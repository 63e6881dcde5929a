"""The two sides of a comparison of speed, and timings of both in turn, on the model or parts of it."""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from collage.backends.measurement.ratio import Ratio, compare_builds
from collage.backends.numerics.tensor_files import write_samples
from collage.backends.registry import canonical
from collage.environments.interleaved import Interleaver
from collage.environments.work import BuildRequest, Entry, Environment, Work, WorkStep
from collage.model.reference import Reference
from collage.model.sub_models import RegionFiles
from collage.partitioner.graph.sub_graph import SubGraph
from collage.partitioner.target import Target
from collage.runner import Runner

# Student's needs three builds, and five make its interval narrow enough to be of use.
JUDGING_BUILDS, LOOKING_BUILDS = 5, 1


@dataclass(frozen=True)
class Side:
    """A target in an environment."""

    target: Target
    environment: int  # by position

    def told(self, environments: Sequence[Environment]) -> dict[str, str]:
        """For reports."""
        here = environments[self.environment]
        return {
            "target": str(self.target),
            "python": here.name,
            "version": here.versions.get(self.target.backend, ""),
        }


Cut = Sequence[tuple[int, Side]]
"""A plan: sets of nodes (bitsets) in execution order, and where each runs."""


@dataclass(frozen=True)
class Times:
    """How long both sides take: medians over builds in microseconds, with 95 % intervals."""

    slow_us: Ratio
    fast_us: Ratio
    ratio: Ratio

    @property
    def excess_us(self) -> float:
        """By how much the first side takes longer."""
        return self.slow_us.ratio - self.fast_us.ratio

    def as_json(self) -> dict[str, object]:
        """For reports."""
        return {
            "latency_us": self.slow_us.ratio,
            "interval_us": [self.slow_us.low, self.slow_us.high],
            "other_latency_us": self.fast_us.ratio,
            "other_interval_us": [self.fast_us.low, self.fast_us.high],
            "ratio": self.ratio.ratio,
            "ratio_interval": [self.ratio.low, self.ratio.high],
        }


class SideTimer:
    """Times plans of one model whose partitions run on either side."""

    def __init__(
        self,
        regions: RegionFiles,
        reference: Reference,
        environments: Sequence[Environment],
        threads: int,
        runner: Runner,
        cancel: threading.Event | None = None,
        metric: str = "max",
    ) -> None:
        self.environments = tuple(environments)
        self._regions, self._reference = regions, reference
        self._threads, self._runner, self._cancel, self._metric = threads, runner, cancel, metric

    def time(self, plans: Sequence[Cut], builds: int, rounds: int = 8) -> Interleaver:
        """Time plans in turn; all partitions of one plan are in one environment."""
        works = tuple(self._work(plan) for plan in plans)
        entries = tuple(Entry(plan[0][1].environment, number) for number, plan in enumerate(plans))
        timed = Interleaver(
            BuildRequest(
                self.environments,
                works,
                entries,
                threads=self._threads,
                rounds=rounds,
                metric=self._metric,
            ),
            self._runner,
            self._cancel,
        )
        timed.run(builds)
        return timed

    def _work(self, plan: Cut) -> Work:
        index = self._regions.model.index
        nodes = sum(part for part, _ in plan)
        whole = SubGraph(index, nodes)
        models = [self._regions.get(part) for part, _ in plan]
        folder = models[0].path.parent
        name = f"{hash(nodes):x}"
        samples, expected = folder / f"{name}-samples.npz", folder / f"{name}-expected.npz"
        if not expected.exists():
            write_samples(samples, self._reference.values(whole.inputs)[:1])
            write_samples(expected, self._reference.expected(whole.outputs)[:1])
        steps = tuple(
            WorkStep(model, str(canonical(side.target, self._threads)))
            for model, (_, side) in zip(models, plan, strict=True)
        )
        inputs = tuple(index.values[n] for n in whole.inputs)
        return Work(steps, inputs, whole.outputs, samples, expected)


def times_of(timed: Interleaver, slow: int, fast: int) -> Times:
    """How long two whole plans take."""
    own = [[b.entries[i].samples_us for b in timed.builds] for i in (slow, fast)]
    return Times(middle(own[0]), middle(own[1]), timed.ratio(slow, fast))


def step_times_of(timed: Interleaver, slow: tuple[int, int], fast: tuple[int, int]) -> Times:
    """How long two steps take inside their running plans, each given as plan and step."""
    own = [
        [[r[step] for r in b.entries[plan].step_us] for b in timed.builds]
        for plan, step in (slow, fast)
    ]
    ratio = compare_builds(list(zip(own[0], own[1], strict=True)))
    return Times(middle(own[0]), middle(own[1]), ratio)


def middle(builds: Sequence[Sequence[float]]) -> Ratio:
    """The latency over builds with its 95 % interval: the geometric mean of the builds' medians."""
    medians = [statistics.median(samples) for samples in builds if samples]
    if not medians:
        return Ratio(math.nan, math.nan, math.nan)
    return compare_builds([([us], [1.0]) for us in medians])

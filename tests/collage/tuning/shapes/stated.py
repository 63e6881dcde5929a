"""Representative shapes with stated times: no clock, no runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from collage.events import ignore
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.ingest.normalize import NormalizedInfo
from collage.partitioner.target import Target
from collage.shapes.space import Shape
from collage.timing.plan_timer import JUDGING_ROUNDS, PlanTimer
from collage.timing.request import PlanTiming
from collage.timing.standings import Standings
from collage.timing.timed_plan import TimedPlan
from collage.tuning.shapes.at_shape import AtShape
from collage.tuning.shapes.samples import BoundShape
from tests.partitioner.graphs import text_model

A, B, C = (Target.parse(text) for text in ("null", "simulated", "onnxruntime"))
MODEL = text_model("g (float[N] x) => (float[N] y) { h = Relu(x) y = Relu(h) }")
MIX = Plan((Candidate(1, A), Candidate(2, B)))

Cost = Callable[[str, int], float | None]
"""Microseconds of a plan by its targets and the size, or None where it fails."""
_NOISE = (1.0, 1.004, 0.997, 1.001, 0.999, 1.003)


class StatedTimer(PlanTimer):
    """A plan takes what functions say, give or take less than a percent."""

    def __init__(self, size: int, any_shape: Cost, this_shape: Cost, tolerance: float) -> None:
        super().__init__(cast(RegionFiles, None), cast(Any, None), ignore, tolerance=tolerance)
        self._size, self._any, self._this = size, any_shape, this_shape
        self.count = 0

    def time(
        self,
        plans: Sequence[TimedPlan],
        again: Sequence[TimedPlan] = (),
        rounds: int = JUDGING_ROUNDS,
        *_: Any,
        **__: Any,
    ) -> Standings:
        # The first plan that runs is the baseline.
        all_plans = [*self.entries, *plans]
        first = next((e for e in all_plans if self._samples(e, rounds, 0)), all_plans[0])
        known = [] if not self.entries else [first, *(e for e in again if e is not first)]
        self.entries.extend(plans)
        baseline = self._samples(first, rounds, 0)
        for position, entry in enumerate([*known, *plans]):
            samples = self._samples(entry, rounds, position)
            timing = PlanTiming(samples) if samples else PlanTiming(failure="it is stated")
            entry.timings[self.count] = timing
            pairs = zip(samples, baseline, strict=False)
            entry.baseline_ratios[self.count] = [a / b for a, b in pairs]
        self.entries.sort(key=lambda entry: entry is not first)
        self.count += 1
        return self.standings

    def _samples(self, entry: TimedPlan, rounds: int, shift: int) -> tuple[float, ...]:
        cost = self._this if entry.regions is None else self._any
        us = cost("+".join(str(p.target) for p in entry.plan.partitions), self._size)
        if us is None:
            return ()
        return tuple(us * _NOISE[(i + shift) % len(_NOISE)] for i in range(rounds))


def shapes(
    sizes: Mapping[int, float],
    any_shape: Cost,
    this_shape: Cost | None = None,
    plans: Any = None,
    tolerance: float = 1e-3,
) -> list[AtShape]:
    """Representative shapes of one dimension, with all plans timed.

    Args:
        sizes: with their weights.
        any_shape: what plans take that are compiled for any shape.
        this_shape: what they take when compiled for one shape alone; by default the same.
        plans: by name; single targets by default.
        tolerance: plans with a larger error are not chosen.
    """
    single = {str(t): Plan((Candidate(MODEL.index.all_nodes, t),)) for t in (A, B, C)}
    found = []
    for size, weight in sizes.items():
        bound = BoundShape(Shape({"N": size}, weight), MODEL, NormalizedInfo(Path(), (), ()))
        at = AtShape(
            bound,
            cast(Any, SimpleNamespace(threads=1)),
            cast(RegionFiles, None),
            cast(RegionFiles, SimpleNamespace()),
            StatedTimer(size, any_shape, this_shape or any_shape, tolerance),
            (A, B, C),
            tolerance,
        )
        at.time(list((plans or single).items()))
        found.append(at)
    return found

"""The report of an artifact with free dimensions: that of the main shape, and a row for each shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collage.model.preparation import computed
from collage.partitioner.candidate import Plan, bits
from collage.report.report import interval_us
from collage.report.shapes import not_told
from collage.shapes.classes import ServedShapes
from collage.timing.timed_plan import TimedPlan
from collage.tuning.run import Run
from collage.tuning.shapes.at_shape import AtShape
from collage.tuning.shapes.choice import ChosenClass
from collage.tuning.shapes.hot import HotPlan
from collage.tuning.shapes.memory import Fitted


@dataclass(frozen=True)
class ShapeFindings:
    """What tuning over shapes found.

    Args:
        timed: the representative shapes.
        fitted: the plans of the classes, and what they hold in memory.
        main: the shape that was searched at.
    """

    timed: Sequence[AtShape]
    fitted: Fitted
    main: int

    @property
    def classes(self) -> Sequence[ChosenClass]:
        """The classes with their plans."""
        return self.fitted.classes

    @property
    def hot(self) -> Sequence[HotPlan | None]:
        """Of each class the plan for shapes that come often, or None."""
        return self.fitted.hot

    @property
    def class_of_shape(self) -> Mapping[int, int]:
        """The position of the class of each representative shape."""
        return {i: number for number, one in enumerate(self.classes) for i in one.shapes}

    def plan_at(self, shape: int) -> TimedPlan:
        """The plan of a representative shape."""
        at = self.timed[shape]
        entry = at.find(self.classes[self.class_of_shape[shape]].plan, at.dynamic)
        assert entry is not None, "a class has only shapes where its plan runs"
        return entry


def shaped_report(
    run: Run, known: ShapeFindings, found: Mapping[str, Any], served: ServedShapes
) -> dict[str, Any]:
    """The report.

    Args:
        found: the report of the search at the main shape, of which that stays which no other shape changes.
    """
    at, entry = known.timed[known.main], known.plan_at(known.main)
    rows = [
        _row(i, known) for i in sorted(known.class_of_shape, key=lambda i: known.timed[i].bound.extent)
    ]
    singles = [free for free, _ in at.singles().values() if at.find(free.plan, at.dynamic) is free]
    best = min(singles, key=at.estimates.ratio, default=None)
    gain = None if best is None else at.estimates.between(best, entry)
    return {
        **found,
        "partitions": _partitions(run, at, entry),
        "latency_us": entry.latency_us,
        "latency_interval_us": list(interval_us(entry)),
        "baselines": [
            _baseline(str(target), free, at, entry) for target, (free, _) in at.singles().items()
        ],
        "greedy_latency_us": None,
        "speedup_over_best_single": None if gain is None else gain.ratio,
        "speedup_interval": None if gain is None else [gain.low, gain.high],
        "predicted_latency_us": None,
        "additive_error": None,
        "max_relative_error": max(row["max_relative_error"] for row in rows),
        "warnings": [
            *found["warnings"],
            *not_told(found["warnings"], [t for one in known.timed for t in one.warnings]),
            *known.fitted.notes,
        ],
        "seconds": {
            stage: round(spent, 3)
            for stage, spent in {**run.clock.seconds, "total": run.clock.total_s}.items()
        },
        "shapes": {
            "dims": {name: dim.text for name, dim in served.space.dims.items()},
            "main": known.main,
            "most_copies": served.most_copies,
            "classes": [_class(one, warm) for one, warm in zip(known.classes, known.hot, strict=True)],
            "rows": rows,
            "weighted": _weighted(rows),
            "rss_bytes": {name: one.steady_bytes for name, one in known.fitted.held.items()},
            "peak_rss_bytes": {name: one.peak_bytes for name, one in known.fitted.held.items()},
            "memory_limit_bytes": known.fitted.limit_bytes,
        },
    }


def _class(one: ChosenClass, warm: HotPlan | None) -> dict[str, Any]:
    said: dict[str, Any] = {
        "up_to": one.up_to,
        "partitions": len(one.plan.partitions),
        "targets": [str(target) for target in one.plan.targets],
        "treatment": "dynamic",
        "hot": None,
    }
    if warm is not None:
        said["hot"] = {
            "partitions": len(warm.plan.partitions),
            "targets": [str(target) for target in warm.plan.targets],
            "treatment": "bucket" if warm.padding else "exact",
            "buckets": None if warm.padding is None else {warm.padding.dim: list(warm.padding.buckets)},
            "compile_s": round(warm.compile_s, 4),
            "from_request": warm.hot_from,
        }
    return said


def _row(shape: int, known: ShapeFindings) -> dict[str, Any]:
    at, entry, number = known.timed[shape], known.plan_at(shape), known.class_of_shape[shape]
    warm = known.hot[number]
    hot = None if warm is None else at.find(warm.plan, at.fixed)
    return {
        "sizes": dict(at.bound.shape.sizes),
        "weight": at.bound.shape.weight,
        "class": number,
        "latency_us": entry.latency_us,
        "hot_latency_us": None if hot is None else at.latency_us(hot, entry),
        "max_relative_error": max(e.error or 0.0 for e in (entry, hot) if e is not None),
        "singles": [
            {
                "target": str(target),
                "any_shape_us": _us(at, free, entry),
                "this_shape_us": _us(at, fixed, entry),
                "failure": free.failure or _too_far_off(at, free),
            }
            for target, (free, fixed) in at.singles().items()
        ],
    }


def _weighted(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over shapes by their weights, of ours and of each single target; None where that fails at one."""
    targets = [single["target"] for single in rows[0]["singles"]]

    def mean(times: Sequence[float | None]) -> float | None:
        if any(us is None for us in times):
            return None
        return math.fsum(
            row["weight"] * us for row, us in zip(rows, times, strict=True) if us is not None
        )

    return {
        "latency_us": mean([row["latency_us"] for row in rows]),
        "singles": [
            {
                "target": target,
                **{
                    key: mean([None if (s := row["singles"][i])["failure"] else s[key] for row in rows])
                    for key in ("any_shape_us", "this_shape_us")
                },
            }
            for i, target in enumerate(targets)
        ],
    }


def _too_far_off(at: AtShape, single: TimedPlan) -> str | None:
    error = single.error or 0.0
    return f"its error {error:.3g} exceeds {at.tolerance:.3g}" if error > at.tolerance else None


def _us(at: AtShape, entry: TimedPlan, beside: TimedPlan) -> float | None:
    return at.latency_us(entry, beside) if entry.timed else None


def _baseline(target: str, single: TimedPlan, at: AtShape, ours: TimedPlan) -> dict[str, Any]:
    if not single.timed:
        return {"target": target, "infeasible": single.failure or "not timed"}
    latency_us, *interval = at.estimates.latency_us(single, ours)
    said: dict[str, Any] = {
        "target": target,
        "latency_us": latency_us,
        "latency_interval_us": list(interval_us(ours)) if single is ours else interval,
    }
    if (single.error or 0.0) > at.tolerance:
        said["exceeds_tolerance"] = single.error
    return said


def _partitions(run: Run, at: AtShape, entry: TimedPlan) -> list[dict[str, Any]]:
    plan: Plan = entry.plan
    steps = entry.step_us
    return [
        {
            "target": str(partition.target),
            "nodes": [at.bound.model.index.nodes[i].name for i in bits(partition.nodes)],
            **computed(run.runner.facts(partition.target)),
            "latency_us": steps[position] if position < len(steps) else None,
            "predicted_us": None,
            "runner_up": None,
            "alternatives": [],
            "why": [
                f"of all plans it takes the least time over its shapes; its times are at {at.bound.text}"
            ],
        }
        for position, partition in enumerate(plan.partitions)
    ]

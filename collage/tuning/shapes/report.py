"""The report of an artifact with free dimensions: that of the main shape, and a row for each shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collage.model.preparation import computed
from collage.partitioner.candidate import Plan, bits
from collage.shapes.classes import ServedShapes
from collage.timing.timed_plan import TimedPlan
from collage.tuning.run import Run
from collage.tuning.shapes.at_shape import AtShape
from collage.tuning.shapes.choice import ChosenClass

if TYPE_CHECKING:
    from collage.tuning.shapes.write import HotPlan


def shaped_report(
    run: Run,
    timed: Sequence[AtShape],
    classes: Sequence[ChosenClass],
    hot: Sequence[HotPlan | None],
    main: int,
    found: Mapping[str, Any],
    served: ServedShapes,
) -> dict[str, Any]:
    """The report; what the search found at the main shape is changed where another plan was chosen."""
    of_shape = {i: number for number, one in enumerate(classes) for i in one.shapes}
    rows = [
        _row(i, timed[i], of_shape[i], classes[of_shape[i]], hot[of_shape[i]])
        for i in _by_extent(timed)
    ]
    own = next(row for row in rows if row["shape"] == main)
    plan = classes[of_shape[main]].plan
    entry = timed[main].find(plan, timed[main].dynamic)
    best = min(
        (us for single in own["singles"] for us in (single["any_shape_us"],) if us is not None),
        default=None,
    )
    return {
        **found,
        "partitions": _partitions(run, timed[main], plan, entry),
        "latency_us": own["latency_us"],
        "latency_interval_us": None,
        "speedup_over_best_single": None if best is None else best / own["latency_us"],
        "speedup_interval": None,
        "predicted_latency_us": None,
        "additive_error": None,
        "max_relative_error": max(row["max_relative_error"] or 0.0 for row in rows),
        "warnings": [
            *found["warnings"],
            *dict.fromkeys(text for at in timed for text in at.warnings),
        ],
        "seconds": {**found["seconds"], **run.clock.seconds, "total": run.clock.total_s},
        "shapes": {
            "dims": {name: dim.text for name, dim in served.space.dims.items()},
            "main": main,
            "classes": [
                {
                    "up_to": one.up_to,
                    "partitions": len(one.plan.partitions),
                    "targets": [str(target) for target in one.plan.targets],
                    "hot": None
                    if warm is None
                    else {
                        "partitions": len(warm.plan.partitions),
                        "targets": [str(target) for target in warm.plan.targets],
                        "compile_s": round(warm.compile_s, 4),
                        "from_request": warm.hot_from,
                    },
                }
                for one, warm in zip(classes, hot, strict=True)
            ],
            "rows": rows,
        },
    }


def _by_extent(timed: Sequence[AtShape]) -> list[int]:
    return sorted(range(len(timed)), key=lambda i: timed[i].bound.extent)


def _row(
    position: int, at: AtShape, number: int, one: ChosenClass, warm: HotPlan | None
) -> dict[str, Any]:
    entry = at.find(one.plan, at.dynamic)
    assert entry is not None, "a class has only shapes where its plan runs"
    hot = None if warm is None else at.find(warm.plan, at.fixed)
    return {
        "shape": position,
        "sizes": dict(at.bound.shape.sizes),
        "weight": at.bound.shape.weight,
        "class": number,
        "latency_us": entry.latency_us,
        "hot_latency_us": None if hot is None else at.latency_us(hot, entry),
        "max_relative_error": max(
            (e.error or 0.0 for e in (entry, hot) if e is not None), default=None
        ),
        "singles": [
            {
                "target": str(target),
                "any_shape_us": _us(at, free, entry),
                "this_shape_us": _us(at, fixed, entry),
                "failure": free.failure,
            }
            for target, (free, fixed) in at.singles().items()
        ],
    }


def _us(at: AtShape, entry: TimedPlan, beside: TimedPlan) -> float | None:
    return at.latency_us(entry, beside) if entry.timed else None


def _partitions(run: Run, at: AtShape, plan: Plan, entry: TimedPlan | None) -> list[dict[str, Any]]:
    steps = entry.step_us if entry is not None else ()
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
                f"the plan that takes the least time over all shapes; times are at {at.bound.text}"
            ],
        }
        for position, partition in enumerate(plan.partitions)
    ]

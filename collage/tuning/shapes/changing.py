"""The last word on classes: what they take where each call has another shape.

Plans are compared at shapes that repeat. Some runtimes compile parts of themselves anew at each shape that they have not
seen lately. So where a dimension is a range, the classes run beside each simpler choice at random sizes of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

from collage.backends.numerics.reference import table_bounds
from collage.backends.sandbox.run import ChildFailed
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.expressions import size_of
from collage.partitioner.tensor import TensorSpec
from collage.report.verdict import title
from collage.shapes.classes import extent
from collage.shapes.space import DimSizes, ShapeSpace
from collage.timing.changing import changing_us
from collage.timing.timed_plan import identity
from collage.tuning.run import Run
from collage.tuning.shapes.at_shape import AtShape
from collage.tuning.shapes.choice import ChosenClass

_CALLS, _MOST_CHOICES = 40, 5
# So much less another choice must take, in either half of the calls.
_BETTER = 0.97


def proven_by_changing(
    run: Run,
    free: Model,
    space: ShapeSpace,
    timed: Sequence[AtShape],
    classes: Sequence[ChosenClass],
    seconds: float,
) -> tuple[Sequence[ChosenClass], str | None]:
    """The classes, or one plan for all shapes that takes less where shapes change; then also a sentence that says so.

    Args:
        run: what the stages run with.
        free: the model with free dimensions.
        space: its sizes.
        timed: its representative shapes.
        classes: as they were chosen by repeated calls.
        seconds: for the calls.
    """
    if not any(dim.is_range for dim in space.dims.values()):
        return classes, None
    others = [plan for plan in run_everywhere(timed)[:_MOST_CHOICES] if not _is(classes, plan)]
    if not others:
        return classes, None
    regions = RegionFiles(free, run.work_dir / "changing", mapped=True)
    choices = [
        [(one.up_to, _parts(regions, one.plan)) for one in classes],
        *([(None, _parts(regions, plan))] for plan in others),
    ]
    index = free.index
    inputs = [index.values[name] for name in index.inputs]
    try:
        with run.runner.alone(run.cancel):
            spent = run.runner.run(
                changing_us,
                choices,
                inputs,
                [(extent(sizes), specs) for sizes, specs in calls_at(free, random_sizes(space))],
                table_bounds(index),
                [name for name in index.outputs if name in index.producer],
                timed[0].sampling.threads,
                seconds,
                cancel=run.cancel,
            )
    except ChildFailed as failure:
        return classes, f"plans could not be compared at sizes that change: {failure.reason}"
    ours, *theirs = spent
    best = min(range(len(theirs)), key=lambda i: sum(theirs[i]))
    half = len(ours) // 2
    parts = ((0, half), (half, None), (0, None))
    is_faster = all(sum(theirs[best][a:b]) < _BETTER * sum(ours[a:b]) for a, b in parts)
    runs_where_ours_does_not = math.isinf(sum(ours)) and math.isfinite(sum(theirs[best]))
    if not (is_faster or runs_where_ours_does_not):
        return classes, None
    ours_us, best_us = (sum(times) / len(times) for times in (ours, theirs[best]))
    names = ", ".join(dict.fromkeys(title(str(t)) for t in others[best].targets))
    note = (
        f"where each call has another size, {names} takes {best_us / 1e3:.3g} ms in the mean, and what is "
        f"fastest at sizes that repeat {f'{ours_us / 1e3:.3g} ms' if math.isfinite(ours_us) else 'does not run at some'}; so {names} is returned for all sizes. Where few "
        "sizes repeat, list them: --dim NAME=16,64,128"
    )
    return [ChosenClass(None, others[best], tuple(range(len(timed))), None)], note


def run_everywhere(timed: Sequence[AtShape]) -> list[Plan]:
    """Plans for any shape that run at each representative one, the fastest by weight first."""
    known = {identity(entry.plan): entry.plan for entry in timed[0].dynamic}
    cost: list[tuple[float, int, Plan]] = []
    for number, plan in enumerate(known.values()):
        entries = [at.find(plan, at.dynamic) for at in timed]
        found = [entry for entry in entries if entry is not None]
        if len(found) == len(timed):
            weights = [at.bound.shape.weight for at in timed]
            us = math.fsum(w * entry.latency_us for w, entry in zip(weights, found, strict=True))
            cost.append((us, number, plan))
    return [plan for _, _, plan in sorted(cost)]


def _is(classes: Sequence[ChosenClass], plan: Plan) -> bool:
    return all(identity(one.plan) == identity(plan) for one in classes)


def _parts(regions: RegionFiles, plan: Plan) -> list[tuple[object, object]]:
    return [(regions.get(partition.nodes), partition.target) for partition in plan.partitions]


def random_sizes(space: ShapeSpace) -> list[dict[str, int]]:
    """Sizes of calls, the same for each run; of a range by the logarithm of the size."""
    draw = random.Random(0)
    return [{name: _size(dim, draw) for name, dim in space.dims.items()} for _ in range(_CALLS + 1)]


def _size(dim: DimSizes, draw: random.Random) -> int:
    if not dim.is_range:
        return draw.choices(dim.sizes, dim.weights)[0]
    first = max(dim.low, 1)
    size = float(first * (dim.high / first) ** draw.random())
    return min(dim.high, dim.low + round((size - dim.low) / dim.step) * dim.step)


def calls_at(
    free: Model, drawn: Sequence[dict[str, int]]
) -> list[tuple[dict[str, int], list[TensorSpec]]]:
    """The model's inputs at sizes of its free dimensions, each with the sizes."""
    names = {value.name: value.shape or () for value in free.ir.graph.inputs}
    inputs = [free.index.values[name] for name in free.index.inputs]
    return [
        (
            sizes,
            [
                replace(
                    spec,
                    shape=tuple(
                        dim if isinstance(dim, int) else size_of(str(dim.value), sizes)
                        for dim in names[spec.name]
                    ),
                )
                for spec in inputs
            ],
        )
        for sizes in drawn
    ]

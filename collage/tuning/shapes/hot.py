"""The plan for shapes that come often: compiled for one shape alone, once that pays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from collage.backends.sandbox.run import ChildFailed
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.shapes.padding import Padding
from collage.timing.compiling import seconds_to_compile
from collage.tuning.run import Run
from collage.tuning.shapes.at_shape import AtShape
from collage.tuning.shapes.choice import ChosenClass
from collage.tuning.time_left import NO_LIMIT, TimeLeft

LEFT_OUT = "plans compiled for one size alone"


@dataclass(frozen=True)
class HotPlan:
    """A plan compiled for one shape, for shapes that come often.

    Args:
        plan: the plan.
        compile_s: seconds of compiling it for a shape.
        padding: how requests are padded to a shape that it is compiled for; None where they are not.
        hot_from: at which request of a shape it takes over. By then the requests before have lost as much time as
            compiling takes, so whatever comes later, at most twice the least possible time is spent.
    """

    plan: Plan
    compile_s: float
    hot_from: int
    padding: Padding | None = None


def hot_plan(
    run: Run,
    regions: RegionFiles,
    timed: Sequence[AtShape],
    one: ChosenClass,
    left: TimeLeft = NO_LIMIT,
) -> HotPlan | None:
    """The hot plan of a class with what compiling it takes; None where it has none, or it cannot be compiled once more.

    Args:
        regions: sub-models with free dimensions.
        timed: the representative shapes.
        one: the class.
        left: the time of the run.
    """
    at = timed[max(one.shapes, key=lambda i: timed[i].bound.shape.weight * timed[i].bound.extent)]
    cold = at.find(one.plan, at.dynamic)
    entry = None if one.hot is None else at.find(one.hot, at.fixed)
    if cold is None or entry is None or left.leaves_out(LEFT_OUT, least_s(timed)):
        return None
    compile_s = compile_seconds(run, regions, at, entry.plan, left)
    if compile_s is None:
        return None
    saved_us = at.latency_us(cold, entry) - entry.latency_us
    return HotPlan(entry.plan, compile_s, 1 + math.ceil(compile_s * 1e6 / saved_us))


def least_s(timed: Sequence[AtShape]) -> float:
    """Seconds of compiling a plan twice, and of measuring what it holds at all shapes, beside a single target."""
    return (4 + len(timed)) * max(at.plan_s for at in timed)


def compile_seconds(
    run: Run, regions: RegionFiles, at: AtShape, plan: Plan, left: TimeLeft = NO_LIMIT
) -> float | None:
    """Seconds of compiling a plan for one shape; None where that has no meaning, or fails."""
    values = at.bound.model.index.values
    parts = []
    for partition in plan.partitions:
        model = regions.of(partition)
        specs = [values[spec.name] for spec in model.inputs]
        if not all(spec.is_static for spec in specs):
            return None  # there is no one shape to compile for
        parts.append((model, [spec.static_shape for spec in specs], partition.target))
    try:
        with run.runner.alone(run.cancel):
            seconds: tuple[float, ...] = run.runner.run(
                seconds_to_compile,
                parts,
                at.sampling.threads,
                limits=left.limits,
                cancel=run.cancel,
            )
            return sum(seconds)
    except ChildFailed:
        return None

"""Buckets: whether requests padded to a few sizes, each compiled for, beat the plan for any shape.

Padding is offered only along a dimension where it provably changes nothing that is read, or whose mask the user names.
Like every choice it is measured, at sizes that were not tuned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from collage.backends.numerics.reference import table_bounds
from collage.backends.sandbox.run import ChildFailed
from collage.model.free_regions import form_of
from collage.model.preparation import mixes_rows
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.row_independence import RowsMixError, rows_of_outputs
from collage.partitioner.ingest.expressions import parse_sum
from collage.shapes.classes import extent
from collage.shapes.padding import Padding
from collage.shapes.space import DimSizes, ShapeSpace
from collage.shapes.traffic import Traffic
from collage.timing.padding import padded_times
from collage.tuning.run import Run
from collage.tuning.shapes.at_shape import AtShape
from collage.tuning.shapes.changing import CALLS, calls_at, sample_of
from collage.tuning.shapes.choice import ChosenClass
from collage.tuning.shapes.hot import HotPlan, compile_seconds, least_s
from collage.tuning.time_left import NO_LIMIT, TimeLeft

_MOST_BUCKETS = 8
_MOST_SIZES = 64
# Fewer buckets are taken where they cost at most this much more.
_ENOUGH = 1.03
# So much less the padded plan must take, in either half of the requests.
_BETTER = 0.97
_SECONDS = 4.0


@dataclass(frozen=True)
class Paddable:
    """A dimension along which requests may be padded.

    Args:
        dim: its name.
        inputs: the axis of each input that has it.
        outputs: of each output that has it the axis, and how many positions there belong to one of the dimension.
        mask: the input that is 0 where padding is, or None.
    """

    dim: str
    inputs: Mapping[str, int]
    outputs: Mapping[str, tuple[int, int]]
    mask: str | None = None


def paddable(
    free: Model, space: ShapeSpace, timed: Sequence[AtShape], masks: Mapping[str, str]
) -> list[Paddable]:
    """The dimensions along which requests may be padded.

    Args:
        free: the model with free dimensions.
        space: its sizes.
        timed: its representative shapes.
        masks: by dimension the input that the user says keeps padding out.
    """
    graph = free.ir.graph
    axes = {
        value.name or "": [d if isinstance(d, int) else str(d.value) for d in value.shape or ()]
        for value in (*graph.inputs, *graph.outputs)
    }
    found = []
    for dim in space.dims:
        inputs = {name: axes[name].index(dim) for name in free.index.inputs if dim in axes[name]}
        if any(_depends(axis, dim) for own in axes.values() for axis in own if axis != dim):
            continue
        if any(axes[name].count(dim) > 1 for name in inputs) or not inputs:
            continue
        outputs: Mapping[str, tuple[int, int]] | None
        if dim in masks:
            outputs = {n: (axes[n].index(dim), 1) for n in free.index.outputs if dim in axes[n]}
        else:
            outputs = _proven(dim, inputs, timed)
        if outputs is not None:
            found.append(Paddable(dim, inputs, outputs, masks.get(dim)))
    return found


def _depends(axis: int | str, dim: str) -> bool:
    total = parse_sum(axis) if isinstance(axis, str) else None
    return total is not None and dim in total.names


def _proven(
    dim: str, inputs: Mapping[str, int], timed: Sequence[AtShape]
) -> dict[str, tuple[int, int]] | None:
    """The rows of outputs, where they are proven to be apart alike at two sizes; else None."""
    proofs = {}
    for at in timed:
        size = at.bound.shape.sizes[dim]
        if size < 2 or size in proofs:
            continue
        try:
            found = rows_of_outputs(at.bound.model.index, inputs, size)
        except RowsMixError:
            return None
        proofs[size] = {name: (rows.axis, rows.group) for name, rows in found.items()}
    known = list(proofs.values())
    return known[0] if len(known) > 1 and all(one == known[0] for one in known) else None


def bucket_plan(
    run: Run,
    free: Model,
    regions: RegionFiles,
    traffic: Traffic,
    timed: Sequence[AtShape],
    classes: Sequence[ChosenClass],
    number: int,
    dims: Sequence[Paddable],
    may_run: Callable[[Plan], bool],
    left: TimeLeft = NO_LIMIT,
) -> HotPlan | None:
    """The plan of a class for padded requests, where that is faster than its plan for any shape; else None.

    Args:
        run: what the stages run with.
        free: the model with free dimensions.
        regions: its sub-models.
        traffic: the shapes of requests.
        timed: its representative shapes.
        classes: all classes.
        number: which class.
        dims: the dimensions along which requests may be padded.
        may_run: whether a plan may be returned.
        left: the time of the run.
    """
    one = classes[number]
    for dim in dims:
        exact = _fastest_alone(timed, one, may_run)
        if exact is None:
            return None
        known = _known_us(timed, one, exact, dim.dim)
        low = _low(traffic.dims, classes, number, dim.dim)
        buckets = chosen_buckets(traffic.dims[dim.dim], known, low)
        if not buckets:
            continue
        plan_s = max(at.plan_s for at in timed)
        seconds = least_s(timed) + (1 + len(buckets)) * plan_s + _SECONDS
        if left.leaves_out("padding to a few sizes", seconds):
            return None
        padding = Padding(dim.dim, buckets, dim.inputs, dim.outputs, dim.mask)
        found = _measured(run, free, regions, traffic, timed, one, exact, padding, low, left)
        if found is not None:
            return found
    return None


def _fastest_alone(
    timed: Sequence[AtShape], one: ChosenClass, may_run: Callable[[Plan], bool]
) -> Plan | None:
    """The plan that is the fastest compiled for one shape, where that beats the plan for any shape somewhere."""
    best: tuple[float, Plan] | None = None
    for i in one.shapes:
        at = timed[i]
        cold = at.find(one.plan, at.dynamic)
        if cold is None:
            continue
        for entry in at.fixed:
            may_pad = form_of(entry.plan) == form_of(one.plan) and not mixes_rows(entry.plan)
            if may_pad and at.find(entry.plan, at.fixed) is not None and may_run(entry.plan):
                ratio = at.latency_us(entry, cold) / at.latency_us(cold, cold)
                best = min(best or (ratio, entry.plan), (ratio, entry.plan), key=lambda found: found[0])
    return best[1] if best is not None and best[0] < _BETTER else None


def _known_us(timed: Sequence[AtShape], one: ChosenClass, plan: Plan, dim: str) -> dict[int, float]:
    """By size what a plan takes that is compiled for one shape, over the shapes of a class."""
    known: dict[int, list[float]] = {}
    for i in one.shapes:
        at = timed[i]
        cold, entry = at.find(one.plan, at.dynamic), at.find(plan, at.fixed)
        if cold is not None and entry is not None:
            known.setdefault(at.bound.shape.sizes[dim], []).append(at.latency_us(entry, cold))
    return {size: math.fsum(us) / len(us) for size, us in sorted(known.items())}


def _low(dims: Mapping[str, DimSizes], classes: Sequence[ChosenClass], number: int, dim: str) -> int:
    """The smallest size of a dimension that may be in a class."""
    before = 0 if number == 0 else classes[number - 1].up_to or 0
    others = math.prod(one.high for name, one in dims.items() if name != dim)
    return max(dims[dim].low, before // max(1, others))


def chosen_buckets(dim: DimSizes, known_us: Mapping[int, float], low: int) -> tuple[int, ...]:
    """The buckets that take the least time over the sizes that are served; empty where too little is known.

    A size costs what its bucket takes, by straight lines between sizes that were measured.

    Args:
        dim: the sizes that are served.
        known_us: by size what was measured.
        low: sizes from here on.
    """
    sizes = _sizes(dim, low, max(known_us, default=0))
    if len(known_us) < 2 or len(sizes) < 2:
        return ()
    weights = [_weight(dim, size) for size in sizes]
    cost = [_interpolated(known_us, size) for size in sizes]
    count = len(sizes)
    # least[n][i]: the least time of the sizes up to the i-th with n buckets, of which that is the last.
    least = [[math.fsum(weights[: i + 1]) * cost[i] for i in range(count)]]
    last: list[list[int]] = [[-1] * count]
    for _ in range(1, min(_MOST_BUCKETS, count)):
        row, places = [], []
        for i in range(count):
            tried = [(least[-1][j] + math.fsum(weights[j + 1 : i + 1]) * cost[i], j) for j in range(i)]
            best = min(tried, default=(math.inf, -1))
            row.append(best[0])
            places.append(best[1])
        least.append(row)
        last.append(places)
    limit = _ENOUGH * min(row[-1] for row in least)
    level = next(n for n, row in enumerate(least) if row[-1] <= limit)
    found, place = [], count - 1
    while place >= 0:
        found.append(sizes[place])
        place, level = last[level][place], level - 1
    return tuple(reversed(found))


def _sizes(dim: DimSizes, low: int, high: int) -> list[int]:
    every = range(
        dim.low + -(-max(0, low - dim.low) // dim.step) * dim.step, min(high, dim.high) + 1, dim.step
    )
    if len(every) <= _MOST_SIZES:
        return list(every)
    ratio = every[-1] / max(1, every[0])
    steps = (every[0] * ratio ** (i / (_MOST_SIZES - 1)) for i in range(_MOST_SIZES))
    near = {min(len(every) - 1, max(0, round((size - every[0]) / dim.step))) for size in steps}
    return [every[i] for i in sorted(near | {len(every) - 1})]


def _weight(dim: DimSizes, size: int) -> float:
    """How often a size comes: of a range by its logarithm, of a list as it says."""
    if dim.is_range:
        return 1.0 / max(1, size)
    return dict(zip(dim.sizes, dim.weights, strict=True)).get(size, 0.0)


def _interpolated(known_us: Mapping[int, float], size: int) -> float:
    sizes = sorted(known_us)
    if size <= sizes[0]:
        return known_us[sizes[0]]
    right = next((i for i, one in enumerate(sizes) if one >= size), len(sizes) - 1)
    low, high = sizes[right - 1], sizes[right]
    share = min(1.0, (size - low) / (high - low))
    return known_us[low] + share * (known_us[high] - known_us[low])


def _measured(
    run: Run,
    free: Model,
    regions: RegionFiles,
    traffic: Traffic,
    timed: Sequence[AtShape],
    one: ChosenClass,
    exact: Plan,
    padding: Padding,
    low: int,
    left: TimeLeft,
) -> HotPlan | None:
    at = timed[max(one.shapes, key=lambda i: timed[i].bound.extent)]
    compile_s = compile_seconds(run, regions, at, exact, left)
    if compile_s is None:
        return None
    index = free.index
    drawn = [
        sizes
        for sizes in traffic.draw(CALLS + 1)
        if low <= sizes[padding.dim] <= padding.buckets[-1]
        and (one.up_to is None or extent(sizes) <= one.up_to)
    ]
    try:
        with run.runner.alone(run.cancel):
            found = run.runner.run(
                padded_times,
                [(regions.of(part), part.target) for part in one.plan.partitions],
                [(regions.of(part), part.target) for part in exact.partitions],
                padding,
                [index.values[name] for name in index.inputs],
                [(sizes[padding.dim], specs) for sizes, specs in calls_at(free, drawn)],
                table_bounds(index),
                [name for name in index.outputs if name in index.producer],
                at.sampling.threads,
                _SECONDS,
                sample_of(timed),
                limits=left.limits,
                cancel=run.cancel,
            )
    except ChildFailed:
        return None
    half = len(found.plain_us) // 2
    parts = ((0, half), (half, None))
    is_faster = half and all(
        sum(found.padded_us[a:b]) < _BETTER * sum(found.plain_us[a:b]) for a, b in parts
    )
    if not is_faster or not found.error <= 2 * at.tolerance:
        return None
    saved_us = (sum(found.plain_us) - sum(found.padded_us)) / len(found.plain_us)
    return HotPlan(exact, compile_s, 1 + math.ceil(compile_s * 1e6 / saved_us), padding)

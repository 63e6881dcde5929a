"""Whole plans at shapes that change from call to call: what a runtime does once for each shape counts."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from collage.backends.contract import SubModel
from collage.backends.numerics.seeded import seeded_inputs
from collage.model.reference import Sample
from collage.model.resizing import resized
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.by_shape import ByShape, Part, PartedPlan, ShapeError
from collage.runtime.compiled import CompiledRegions, CompileError

# By class: the largest extent, and the sub-models with free dimensions and their targets, in execution order.
Choice = Sequence[tuple[int | None, Sequence[tuple[SubModel, Target]]]]
_LEAST_CALLS = 12


def changing_us(
    choices: Sequence[Choice],
    inputs: Sequence[TensorSpec],
    calls: Sequence[tuple[int, Sequence[TensorSpec]]],
    bounds: Mapping[str, int],
    outputs: Sequence[str],
    threads: int,
    budget_s: float,
    sample: Sample | None = None,
    cache_dir: Path | None = None,
) -> list[list[float]]:
    """Microseconds of calls at shapes of which each comes once, of several choices in turn; runs in the child.

    A call that a runtime refuses counts as infinite.

    Args:
        choices: what runs which extent.
        inputs: of the model, with free dimensions.
        calls: for each the extent, and the inputs with their sizes; the first only warms up.
        bounds: what values of integer inputs stay below.
        outputs: of the model.
        threads: of one call.
        budget_s: so long after the first call no other begins, but for a few.
        sample: the caller's, which is cut or repeated for each call; without it inputs are seeded.
        cache_dir: where what was compiled before is kept; None for nowhere.
    """
    compiled = CompiledRegions(threads, cache_dir)
    by_shape = ByShape(compiled, inputs, outputs)
    spent: list[list[float]] = [[] for _ in choices]
    begin_s = time.perf_counter()
    known: dict[tuple[object, ...], PartedPlan] = {}

    def plan_of(parts: Sequence[tuple[SubModel, Target]]) -> PartedPlan:
        made = PartedPlan(tuple(Part(m.path.parent.name, m, t, "dynamic") for m, t in parts))
        return known.setdefault(tuple((m.path, t) for m, t in parts), made)

    classes = [[(up_to, plan_of(parts)) for up_to, parts in choice] for choice in choices]
    for count, (extent, specs) in enumerate(calls):
        if count == 1:
            begin_s = time.perf_counter()
        if count > _LEAST_CALLS and time.perf_counter() - begin_s > budget_s:
            break
        feed = feed_at(specs, count, bounds, sample)
        plans = [next(p for up_to, p in own if up_to is None or extent <= up_to) for own in classes]
        # What several choices have in common runs once: the first call at a size takes longer than the second. The
        # call that warms up compiles what only later ones need.
        distinct = list(dict.fromkeys(plans if count else [*plans, *known.values()]))
        first = count % len(distinct)
        took = {
            plan: _call_us(by_shape, plan, feed, outputs)
            for plan in (*distinct[first:], *distinct[:first])
        }
        for own, plan in zip(spent, plans, strict=True):
            if count or math.isinf(took[plan]):
                own.append(took[plan])
    by_shape.close()
    compiled.close()
    return spent


def _call_us(by_shape: ByShape, plan: PartedPlan, feed: Sample, outputs: Sequence[str]) -> float:
    """Microseconds of a call; infinite where a runtime refuses it."""
    start = time.perf_counter()
    try:
        by_shape.run(plan, feed, outputs)
    except (CompileError, ShapeError):
        return math.inf
    return (time.perf_counter() - start) * 1e6


def feed_at(
    specs: Sequence[TensorSpec], seed: int, bounds: Mapping[str, int], sample: Sample | None
) -> Sample:
    """Inputs of some shapes: the caller's sample cut or repeated, or seeded ones."""
    made = None if sample is None else resized(sample, {s.name: s.static_shape for s in specs})
    return seeded_inputs(specs, seed, bounds) if made is None else made

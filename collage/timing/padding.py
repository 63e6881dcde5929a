"""Requests of sizes that were not tuned, padded to a bucket and compiled for it, beside the plan for any shape."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collage.backends.numerics.comparison import output_error
from collage.model.reference import Sample
from collage.partitioner.tensor import TensorSpec
from collage.runtime.by_shape import ByShape, Part, PartedPlan
from collage.runtime.compiled import CompiledRegions
from collage.shapes.classes import Treatment
from collage.shapes.padding import Padding
from collage.timing.changing import feed_at
from collage.timing.compiling import Parts

_LEAST_CALLS, _REPEATS = 6, 5


@dataclass(frozen=True)
class PaddedTimes:
    """What was found.

    Args:
        plain_us: of each request the median, by the plan for any shape.
        padded_us: the same padded, with padding and cutting.
        error: the largest difference between the outputs of both, relative to the largest magnitude.
    """

    plain_us: tuple[float, ...]
    padded_us: tuple[float, ...]
    error: float


def padded_times(
    plain: Parts,
    alone: Parts,
    padding: Padding,
    inputs: Sequence[TensorSpec],
    calls: Sequence[tuple[int, Sequence[TensorSpec]]],
    bounds: Mapping[str, int],
    outputs: Sequence[str],
    threads: int,
    budget_s: float,
    sample: Sample | None = None,
) -> PaddedTimes:
    """Time requests both ways in turn; runs in the child.

    Each request runs in each way once untimed, so the plan for any shape is compared at its best.

    Args:
        plain: the plan for any shape: sub-models with free dimensions and their targets.
        alone: the plan to compile for buckets.
        padding: how requests are padded.
        inputs: of the model.
        calls: of each request the size of the padded dimension, and the inputs with their sizes.
        bounds: what values of integer inputs stay below.
        outputs: of the model.
        threads: of one call.
        budget_s: no request begins later, but for a few.
        sample: the caller's, which is cut or repeated for each request; without it inputs are seeded.
    """
    compiled = CompiledRegions(threads)
    by_shape = ByShape(compiled, inputs, outputs)
    free, exact = _parted(plain, "dynamic"), _parted(alone, "bucket")
    spent: tuple[list[float], list[float]] = ([], [])
    worst = 0.0
    begin_s = time.perf_counter()
    for number, (size, specs) in enumerate(calls):
        if number > _LEAST_CALLS and time.perf_counter() - begin_s > budget_s:
            break
        bucket = padding.bucket(size)
        if bucket is None:
            continue
        feed = feed_at(specs, number, bounds, sample)
        if padding.mask is not None:
            feed = {**feed, padding.mask: np.ones_like(feed[padding.mask])}

        def as_it_is(feed: Mapping[str, np.ndarray] = feed) -> Mapping[str, np.ndarray]:
            return by_shape.run(free, feed, outputs)

        def as_padded(
            feed: Mapping[str, np.ndarray] = feed, size: int = size, bucket: int = bucket
        ) -> Mapping[str, np.ndarray]:
            given = padding.padded(feed, size, bucket)
            return padding.cut(by_shape.run(exact, given, outputs), size, bucket)

        ways = [as_it_is, as_padded]
        wanted, made = (way() for way in ways)
        names = list(outputs)
        error = output_error("max", [made[n] for n in names], [wanted[n] for n in names])
        worst = max(worst, error)
        own: tuple[list[float], list[float]] = ([], [])
        for turn in range(2 * _REPEATS):
            way = (turn + number) % 2
            start = time.perf_counter()
            ways[way]()
            own[way].append((time.perf_counter() - start) * 1e6)
        for all_us, own_us in zip(spent, own, strict=True):
            all_us.append(statistics.median(own_us))
    by_shape.close()
    compiled.close()
    return PaddedTimes(tuple(spent[0]), tuple(spent[1]), worst)


def _parted(parts: Parts, treatment: Treatment) -> PartedPlan:
    return PartedPlan(
        tuple(Part(model.path.parent.name, model, target, treatment) for model, target in parts)
    )

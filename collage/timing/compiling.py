"""What plans at several shapes take besides time: compiling for one shape, and memory."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collage.backends.contract import SubModel
from collage.backends.machine.resident_memory import (
    forget_peak,
    give_back,
    peak_bytes,
    resident_bytes,
)
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.by_shape import ByShape, Part, PartedPlan, fixed
from collage.runtime.compiled import CompiledRegions
from collage.shapes.classes import Treatment

Parts = Sequence[tuple[SubModel, Target]]
Shapes = Sequence[Sequence[int]]


def seconds_to_compile(
    parts: Sequence[tuple[SubModel, Shapes, Target]], threads: int
) -> tuple[float, ...]:
    """Seconds of compiling each sub-model for the shapes of its inputs; runs in the child.

    Args:
        parts: sub-models with free dimensions, the shapes of their inputs, and their targets.
        threads: threads of one call.
    """
    compiled = CompiledRegions(threads)
    spent: list[float] = []
    for number, (free, shapes, target) in enumerate([*parts, *parts]):
        name = f"part-{number}"
        begin_s = time.perf_counter()
        with fixed(free, shapes) as model:
            compiled.get(name, model, target, lasting=False)
        spent.append(time.perf_counter() - begin_s)
        compiled.drop(name, target)
    compiled.close()
    # The first time imports the runtimes.
    return tuple(spent[len(parts) :])


@dataclass(frozen=True)
class Held:
    """The memory of a process that ran plans at several shapes.

    Args:
        steady_bytes: once each plan for all shapes ran at each.
        peak_bytes: the most until then.
        copies: of each shape that a plan was then compiled for alone, how many partitions that are, and what they added.
    """

    steady_bytes: int
    peak_bytes: int
    copies: tuple[tuple[int, int], ...] = ()


def held_memory(
    plans: Sequence[Parts],
    alone: Sequence[tuple[Parts, Sequence[int]]],
    inputs: Sequence[TensorSpec],
    feeds: Sequence[Mapping[str, np.ndarray]],
    threads: int,
) -> Held:
    """The memory that a process holds; runs in the child.

    Args:
        plans: sub-models with free dimensions and their targets, in execution order.
        alone: plans to compile for one shape alone, each with the positions of its feeds.
        inputs: of the model.
        feeds: at several shapes.
        threads: of one call.
    """
    forget_peak()
    compiled = CompiledRegions(threads)
    by_shape = ByShape(compiled, inputs, [])
    for plan in plans:
        parted = _parted(plan, "dynamic")
        for feed in feeds:
            by_shape.run(parted, feed, [])
    give_back()
    steady, peak = resident_bytes(), peak_bytes()
    copies, before = [], steady
    for plan, positions in alone:
        parted = _parted(plan, "exact")
        for position in positions:
            by_shape.run(parted, feeds[position], [])
            give_back()
            after = resident_bytes()
            copies.append((len(plan), after - before))
            before = after
    by_shape.close()
    compiled.close()
    return Held(steady, peak, tuple(copies))


def _parted(parts: Parts, treatment: Treatment) -> PartedPlan:
    return PartedPlan(
        tuple(Part(model.path.parent.name, model, target, treatment) for model, target in parts)
    )

"""What plans at several shapes take besides time: compiling for one shape, and memory."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from collage.backends.contract import SubModel
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.by_shape import ByShape, Part, PartedPlan, fixed
from collage.runtime.compiled import CompiledRegions

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
    with tempfile.TemporaryDirectory() as name:
        for number, (model, shapes, target) in enumerate([*parts, *parts]):
            folder = Path(name, f"part-{number}")
            folder.mkdir()
            begin_s = time.perf_counter()
            compiled.get(folder.name, fixed(model, shapes, folder), target, lasting=False)
            spent.append(time.perf_counter() - begin_s)
            compiled.drop(folder.name, target)
    compiled.close()
    # The first time imports the runtimes.
    return tuple(spent[len(parts) :])


def resident_bytes(
    plans: Sequence[Sequence[tuple[SubModel, Target]]],
    inputs: Sequence[TensorSpec],
    feeds: Sequence[Mapping[str, np.ndarray]],
    threads: int,
) -> int:
    """The memory that a process holds once each plan ran with each feed; runs in the child.

    Args:
        plans: sub-models with free dimensions and their targets, in execution order.
        inputs: of the model.
        feeds: at several shapes.
        threads: threads of one call.
    """
    compiled = CompiledRegions(threads)
    with tempfile.TemporaryDirectory() as name:
        by_shape = ByShape(compiled, inputs, [], Path(name))
        for plan in plans:
            parts = tuple(
                Part(model.path.parent.name, model, target, "dynamic") for model, target in plan
            )
            for feed in feeds:
                by_shape.run(PartedPlan(parts), feed, [])
        # The second number of statm: resident pages.
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        by_shape.close()
    compiled.close()
    return pages * resource.getpagesize()

"""What compiling partitions for one shape takes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from collage.backends.contract import SubModel
from collage.partitioner.target import Target
from collage.runtime.by_shape import fixed
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

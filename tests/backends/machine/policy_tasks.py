"""What a runtime changes in the thread that calls it, and its CPU time while it is idle."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.coexistence.kernels import kernel
from collage.backends.contract import CompileContext
from collage.backends.measurement.buffers import aligned
from collage.backends.registry import resolve
from collage.partitioner.target import Target


@dataclass(frozen=True)
class Manners:
    """How a runtime behaves.

    Args:
        affinity_kept: the caller may run on the same cores as before.
        denormals_kept: the caller's arithmetic still knows denormal numbers.
        burned_ms: processor time of the whole process in 50 ms after a run, median over several.
        most_burned_ms: the largest of these.
    """

    affinity_kept: bool
    denormals_kept: bool
    burned_ms: float
    most_burned_ms: float


def manners(name: str) -> Manners:
    target = Target.parse(name)
    model = kernel(28, Path("kernel.onnx").absolute())
    affinity, denormals = os.sched_getaffinity(0), _has_denormals()
    folder = Path("work").absolute()
    folder.mkdir()
    executable = resolve(target).compile(model, target, CompileContext(2, folder))
    x, y = (aligned(spec.static_shape, np.dtype("float32")) for spec in (*model.inputs, *model.outputs))
    x[...] = 1
    executable.bind([x], [y])
    for _ in range(20):
        executable.run()
    burned = []
    for _ in range(7):
        executable.run()
        begin = time.process_time()
        time.sleep(0.05)
        burned.append((time.process_time() - begin) * 1e3)
    kept = os.sched_getaffinity(0) == affinity
    found = Manners(kept, _has_denormals() == denormals, statistics.median(burned), max(burned))
    executable.close()
    return found


def _has_denormals() -> bool:
    return bool(np.all(np.full(8, 1e-39, np.float32) * np.float32(0.5) > 0))

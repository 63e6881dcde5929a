"""What it costs to copy a value between the host and a device's memory, measured once for each device.

A copy takes a fixed time and a time per byte, from the medians of a tiny and a large value. From device
to device a value goes by way of the host.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from collage.backends.contract import SubModel
from collage.backends.measurement.measure import Run
from collage.backends.sandbox.run import ChildLimits, run_in_child
from collage.partitioner.rules.target_spec import TargetSpec
from collage.partitioner.search.transition import CopyCost
from collage.partitioner.target import HOST_MEMORY, Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.compiled import CompiledRegions

_MIB = 1 << 20
_LARGE_MIB = 4
_TIMES = 21
_MODEL = '<ir_version: 10, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Relu (x) }'


def copy_costs(
    specs: Sequence[TargetSpec], threads: int, run: Run = run_in_child
) -> dict[tuple[str, str], CopyCost]:
    """The copies between every two memory domains of some targets; empty where all are on the host.

    `run` starts the child that copies, here or on another machine.
    """
    one_of = {spec.memory_domain: spec.target for spec in specs if spec.memory_domain != HOST_MEMORY}
    found: dict[tuple[str, str], CopyCost] = {}
    for domain, target in one_of.items():
        # GPU drivers reserve address space by the terabyte.
        limits = ChildLimits(address_bytes=0, gpus=True)
        there, back = run(time_copies, target, threads, limits=limits)
        found[HOST_MEMORY, domain], found[domain, HOST_MEMORY] = _cost(there), _cost(back)
    for source, destination in itertools.permutations(one_of, 2):
        away, on = found[source, HOST_MEMORY], found[HOST_MEMORY, destination]
        found[source, destination] = CopyCost(
            away.fixed_us + on.fixed_us, away.us_per_mib + on.us_per_mib
        )
    return found


def time_copies(target: Target, threads: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Microseconds of copies to a device and back, of a tiny and of a large value (runs in a child)."""
    path = Path("copied.onnx").absolute()
    ir.save(ir.from_onnx_text(_MODEL), path)
    model = SubModel(path, (TensorSpec("x", "float32", (4,)),), (TensorSpec("y", "float32", (4,)),))
    compiled = CompiledRegions(threads)
    executable = compiled.get("copied", model, target)
    there, back = [], []
    for size in (1, _LARGE_MIB * _MIB // 4):
        buffer = executable.buffer(TensorSpec("copied", "float32", (size,)))
        values = np.ones(size, np.float32)
        there.append(_median_us(lambda: buffer.write(values)))  # noqa: B023  (called at once)
        back.append(_median_us(lambda: buffer.read(values)))  # noqa: B023
    compiled.close()
    return (there[0], there[1]), (back[0], back[1])


def _cost(times_us: tuple[float, float]) -> CopyCost:
    tiny_us, large_us = times_us
    return CopyCost(tiny_us, max(0.0, large_us - tiny_us) / _LARGE_MIB)


def _median_us(copy: Callable[[], None]) -> float:
    copy()
    times = []
    for _ in range(_TIMES):
        begin = time.perf_counter_ns()
        copy()
        times.append((time.perf_counter_ns() - begin) / 1e3)
    return statistics.median(times)

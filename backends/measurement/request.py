"""A measurement's request and result: plain values that travel between processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from collage.backends.contract import Available, OpTime, SubModel
from collage.backends.measurement.protocol import Protocol
from collage.backends.registry import check_options
from collage.partitioner.cost import Cost
from collage.partitioner.target import Target


@dataclass(frozen=True)
class MeasureRequest:
    """What to measure and how.

    Args:
        target: with every option that matters.
        model: the sub-model.
        inputs_path: samples of its inputs (`collage.backends.numerics.tensor_files`).
        expected_path: the reference outputs for each of these.
        tolerance: the largest error that is not a wrong result.
        metric: how the error is measured (`collage.backends.numerics.comparison`).
        threads: of one call, unless the target says otherwise.
        protocol: how to time.
        timeout_s: for all of it, import and compilation included.
        profile: also run under the runtime's own profiler.
        cache_dir: folder for compiled blobs, or None.
        memory_bytes: address space of the child; None for the machine's memory.
        count_labels: of integers and text the share that differs is their error, instead of a wrong result.
    """

    target: Target
    model: SubModel
    inputs_path: Path
    expected_path: Path
    tolerance: float
    threads: int
    metric: str = "max"
    protocol: Protocol = field(default_factory=Protocol)
    timeout_s: float = 120.0
    profile: bool = False
    cache_dir: Path | None = None
    memory_bytes: int | None = None
    count_labels: bool = False


@dataclass(frozen=True)
class Measurement:
    """The result of a measurement.

    Args:
        cost: Measured or Infeasible.
        samples_us: raw samples in order of time.
        compile_s: time of compilation.
        peak_memory_bytes: the highest resident memory, over that before compiling.
        error: the worst output's error over all samples, where outputs could be compared.
        yardstick_us: see `timing`; 0 when nothing was timed.
        disturbance: how much the machine changed or other processes used it, see `timing`.
        ops: the runtime's own profile, where asked for.
        profile_failure: why the profile is missing, else empty.
        versions: of what was measured, by name.
    """

    cost: Cost
    samples_us: tuple[float, ...] = ()
    compile_s: float = 0.0
    peak_memory_bytes: int = 0
    error: float | None = None
    yardstick_us: float = 0.0
    disturbance: float = 0.0
    ops: tuple[OpTime, ...] = ()
    profile_failure: str = ""
    versions: dict[str, str] = field(default_factory=dict)


def versions_of(target: Target) -> dict[str, str]:
    """Versions of what a target measures, by name."""
    found = check_options(target).probe()
    return {target.backend: found.version} if isinstance(found, Available) else {}

"""A measurement's request and result: plain values that travel between processes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from collage.backends.contract import Available, OpTime, SubModel
from collage.backends.measurement.protocol import Protocol
from collage.backends.registry import check_options
from collage.partitioner.cost import Cost
from collage.partitioner.target import Target

# So many times its limit a measurement may take.
PATIENCE = 2.0


@dataclass(frozen=True)
class MeasureRequest:
    """What to measure and how."""

    target: Target  # with every option that matters
    model: SubModel  # the sub-model
    inputs_path: Path  # samples of its inputs (`collage.backends.numerics.tensor_files`)
    expected_path: Path  # the reference outputs for each of these
    tolerance: float  # the largest error that is not a wrong result
    threads: int  # of one call, unless the target says otherwise
    metric: str = "max"  # how the error is measured (`collage.backends.numerics.comparison`)
    protocol: Protocol = field(default_factory=Protocol)  # how to time
    timeout_s: float = 120.0  # for all of it, import and compilation included
    # for all of it, where others wait for theirs: fewer samples are taken, and after twice as long it is given up
    limit_s: float | None = None
    profile: bool = False  # also run under the runtime's own profiler
    cache_dir: Path | None = None  # folder for compiled blobs, or None
    memory_bytes: int | None = None  # address space of the child; None for the machine's memory
    # whether differences are counted (`collage.backends.numerics.comparison`), as of low precision
    counted: bool = False

    @property
    def gives_up_s(self) -> float | None:
        """Seconds after which nothing is known of the sub-model; None where `timeout_s` ends it as a failure before."""
        patience_s = math.inf if self.limit_s is None else PATIENCE * self.limit_s
        return patience_s if patience_s < self.timeout_s else None


@dataclass(frozen=True)
class Measurement:
    """The result of a measurement."""

    cost: Cost  # Measured or Infeasible
    samples_us: tuple[float, ...] = ()  # raw samples in order of time
    compile_s: float = 0.0  # time of compilation
    peak_memory_bytes: int = 0  # the highest resident memory, over that before compiling
    # the worst output's error over all samples, where outputs could be compared
    error: float | None = None
    yardstick_us: float = 0.0  # see `timing`; 0 when nothing was timed
    disturbance: float = 0.0  # how much the machine changed or other processes used it, see `timing`
    ops: tuple[OpTime, ...] = ()  # the runtime's own profile, where asked for
    profile_failure: str = ""  # why the profile is missing, else empty
    versions: dict[str, str] = field(default_factory=dict)  # of what was measured, by name
    # the time was not enough for what the protocol asks for, or for the profile
    cut_short: bool = False


def versions_of(target: Target) -> dict[str, str]:
    """Versions of what a target measures, by name."""
    found = check_options(target).probe()
    return {target.backend: found.version} if isinstance(found, Available) else {}

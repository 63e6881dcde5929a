"""The artifact of a plan: its partitions as they will run, proven once more and written with the evidence."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage.artifact.artifact import Artifact, write_artifact
from collage.artifact.evidence import verify_plan, versions_of
from collage.model.preparation import prepared_plan
from collage.model.sampling import Sampling
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.emit.plan_json import encode
from collage.runner import Runner


@dataclass(frozen=True)
class TuneResult:
    """What a tuning run leaves.

    Args:
        artifact_path: the partitioned model.
        report: the report as JSON-ready data.
        plan: the plan alone, as `TuneOptions.plan` takes it.
    """

    artifact_path: Path
    report: dict[str, Any]
    plan: dict[str, Any]


def emit(
    plan: Plan,
    report: Mapping[str, Any],
    destination: Path,
    regions: RegionFiles,
    samples: Sampling,
    runner: Runner,
    cancel: threading.Event | None,
) -> Artifact:
    """Compile a plan afresh, compare it with the reference, and write it.

    Args:
        plan: for the model of `regions`.
        report: about it.
        destination: the artifact's file; large weights beside it are named after it.
        regions: sub-models of its partitions.
        samples: the run's inputs, of which the seeded ones prove the plan.
        runner: where the plan is compiled.
        cancel: stops it when set.

    Raises:
        NoPlanError: it cannot be compiled once more.
        CancelledError: `cancel` was set.
    """
    threads = samples.threads
    # A folder of its own: where a known plan turns out to be of no use, another one is emitted after it.
    folder = Path(tempfile.mkdtemp(prefix="emit-", dir=samples.work_dir))
    final = prepared_plan(plan, regions, folder, threads, runner, samples.cache_dir, cancel)
    tolerance = report["tolerance"]
    verification = verify_plan(final, samples.seeded, samples.seeds, tolerance, threads, runner, cancel)
    times = [part["latency_us"] for part in report["partitions"]]
    versions = versions_of(plan, runner)
    # Rewritten partitions have other nodes: the plan alone speaks of the model that was given.
    text = encode(regions.model, plan, times, versions)
    known = (final.model, final.plan, times, report, verification, versions, destination)
    return write_artifact(*known, final.notes, text)

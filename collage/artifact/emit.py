"""The artifact of a plan: compiled once more, compared with the reference, and written."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from collage.artifact.artifact import Artifact, crossing_values, make_verification, write_artifact
from collage.artifact.verification import Verification
from collage.artifact.verify import Observed, observe
from collage.backends.numerics.reference import table_bounds
from collage.backends.sandbox.run import ChildFailed
from collage.backends.support.file_digests import files_of
from collage.model.preparation import PreparedPlan, prepared_plan
from collage.model.reference import Reference
from collage.model.sampling import Sampling
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Instances, Plan
from collage.partitioner.emit.plan_json import encode_plan
from collage.partitioner.errors import NoPlanError
from collage.runner import Runner


@dataclass(frozen=True)
class TuneResult:
    """What a tuning run leaves: the partitioned model, the report, and a plan for `TuneOptions.plan`."""

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
        samples: the run's inputs and options; the seeded inputs prove the plan.
        runner: where the plan is compiled.

    Raises:
        NoPlanError: it cannot be compiled once more.
    """
    threads = samples.threads
    # A folder of its own: another plan may be emitted after this one.
    folder = Path(tempfile.mkdtemp(prefix="emit-", dir=samples.work_dir))
    final = prepared_plan(plan, regions, folder, threads, runner, samples.cache_dir, cancel)
    tolerance = report["tolerance"]
    proof = samples.proof()
    verification, observed = verify_plan(
        final=final,
        reference=proof,
        seeds=samples.seeds if proof is samples.seeded else range(len(proof.samples)),
        tolerance=tolerance,
        threads=threads,
        runner=runner,
        cancel=cancel,
        keep_inputs=proof is not samples.seeded,
        instances=plan.instances,
    )
    times = [part["latency_us"] for part in report["partitions"]]
    versions = versions_of(plan, runner)
    # Rewritten partitions have other nodes: the plan alone speaks of the model that was given.
    text = encode_plan(regions.model, plan, times, versions)
    return write_artifact(
        model=final.model,
        plan=replace(final.plan, instances=plan.instances),
        latency_us=times,
        report={**report, "footprint": footprint(final.model.path, observed)},
        verification=verification,
        versions=versions,
        destination=destination,
        notes=final.notes,
        source_plan=text,
    )


def verify_plan(
    final: PreparedPlan,
    reference: Reference,
    seeds: Sequence[int],
    tolerance: float,
    threads: int,
    runner: Runner,
    cancel: threading.Event | None = None,
    keep_inputs: bool = False,
    instances: Instances | None = None,
) -> tuple[Verification, Observed]:
    """Reference values for `load`, with the errors of the plan when it is compiled afresh.

    Values are compared with the model as it is emitted: int8 with int8, computed without fusing.

    Args:
        final: the plan on the model as it is emitted.
        reference: of the model before partitions were rewritten, on seeded or given inputs.
        tolerance: allowed for every value.
        runner: where it is compiled.
        keep_inputs: store the inputs, since no seed makes them.
        instances: how many requests at once it was tuned for.

    Returns:
        The reference values, and what was seen of the plan.

    Raises:
        NoPlanError: it cannot be compiled once more.
    """
    plan, regions, model = final.plan, final.regions, final.model
    if model is not reference.model:
        reference = Reference(
            model,
            reference.samples,
            model.path.parent / "own",
            cancel=cancel,
            keep_all=False,
            ties_s=reference.ties_s,
        )
    bounds = table_bounds(model.index)
    values = reference.expected(crossing_values(model, plan), last=True)
    given = reference.samples if keep_inputs else ()
    kept = make_verification(seeds, reference.samples, values, {}, tolerance, bounds, given)
    inputs = tuple(model.index.values[name] for name in model.index.inputs)
    steps = tuple((regions.get(p.nodes), p.target) for p in plan.partitions)
    try:
        count, each = (instances.count, instances.threads) if instances else (1, threads)
        observed: Observed = runner.run(
            observe, steps, kept.to_text(), inputs, each, count, cancel=cancel
        )
    except ChildFailed as failure:
        raise NoPlanError(f"the plan failed when it was compiled once more: {failure.reason}") from None
    errors = observed.errors
    made = make_verification(seeds, reference.samples, values, errors, tolerance, bounds, given)
    return made, observed


def footprint(model: Path, observed: Observed) -> dict[str, Any]:
    """What the artifact takes: memory, time to load without a cache, and size on disk without the report."""
    return {
        "peak_rss_bytes": observed.peak_rss_bytes,
        "load_s": round(observed.load_s, 3),
        "size_bytes": sum(file.stat().st_size for file in files_of(model)),
    }


def versions_of(plan: Plan, runner: Runner) -> dict[str, str]:
    """Versions of this program and of the runtimes that a plan uses on a runner."""
    versions = {"collage": version("collage-tuner")}
    for target in plan.targets:
        versions[target.backend] = runner.facts(target).version
    return versions

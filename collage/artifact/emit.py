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
from collage.artifact.verify import Observed, ToObserve, observe
from collage.backends.numerics.comparison import Expected
from collage.backends.numerics.reference import table_bounds
from collage.backends.sandbox.run import ChildFailed, ChildLimits
from collage.backends.support.file_digests import files_of
from collage.model.preparation import PreparedPlan, prepared_plan
from collage.model.reference import Reference
from collage.model.sampling import Sampling
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Instances, Plan
from collage.partitioner.emit.plan_json import encode_plan
from collage.partitioner.errors import NoPlanError
from collage.runner import Runner

# Compiling and comparing one plan ends after this time.
_VERIFYING_S = 300.0


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

    Args:
        final, reference, seeds, tolerance, keep_inputs: as of `Claim`.
        threads: of one call.
        runner: where it is compiled.
        instances: how many requests at once it was tuned for.

    Returns:
        The reference values, and what was seen of the plan.

    Raises:
        NoPlanError: it cannot be compiled once more.
    """
    claim = Claim(final, reference, seeds, tolerance, keep_inputs)
    ((verification, observed),) = verify_plans([claim], threads, runner, cancel, instances)
    return verification, observed


@dataclass(frozen=True)
class Claim:
    """That a plan computes reference values.

    Values are compared with the model as it is emitted: int8 with int8, computed without fusing.

    Args:
        final: the plan on the model as it is emitted.
        reference: of the model before partitions were rewritten, on seeded or given inputs.
        seeds: of these inputs.
        tolerance: allowed for every value.
        keep_inputs: store the inputs, since no seed makes them.
    """

    final: PreparedPlan
    reference: Reference
    seeds: Sequence[int]
    tolerance: float
    keep_inputs: bool = False

    def values(self, cancel: threading.Event | None) -> tuple[dict[str, Expected], ...]:
        """Per sample the reference of each value that partitions make for others or for the caller."""
        model, reference = self.final.model, self.reference
        if model is not reference.model:
            folder = model.path.parent / "own"
            reference = Reference(
                model,
                reference.samples,
                folder,
                cancel=cancel,
                keep_all=False,
                ties_s=reference.ties_s,
            )
        return reference.expected(crossing_values(model, self.final.plan), last=True)

    def verification(
        self, values: Sequence[Mapping[str, Expected]], errors: Mapping[str, float]
    ) -> Verification:
        """The values for `load`, with the errors that were seen."""
        samples = self.reference.samples
        bounds = table_bounds(self.final.model.index)
        given = samples if self.keep_inputs else ()
        return make_verification(self.seeds, samples, values, errors, self.tolerance, bounds, given)


def verify_plans(
    claims: Sequence[Claim],
    threads: int,
    runner: Runner,
    cancel: threading.Event | None = None,
    instances: Instances | None = None,
) -> list[tuple[Verification, Observed]]:
    """Reference values of several plans, or of one at several sizes, compiled afresh in one process.

    Args:
        claims: what is compared.
        threads: of one call.
        runner: where they are compiled.
        instances: how many requests at once they were tuned for.

    Raises:
        NoPlanError: one cannot be compiled once more.
    """
    values = [claim.values(cancel) for claim in claims]
    plans = []
    for claim, known in zip(claims, values, strict=True):
        model, regions = claim.final.model, claim.final.regions
        inputs = tuple(model.index.values[name] for name in model.index.inputs)
        parts = tuple((regions.get(p.nodes), p.target) for p in claim.final.plan.partitions)
        plans.append(ToObserve(parts, claim.verification(known, {}).to_text(), inputs))
    count, each = (instances.count, instances.threads) if instances else (1, threads)
    limits = ChildLimits(timeout_s=_VERIFYING_S * len(claims))
    try:
        observed: list[Observed] = runner.run(observe, plans, each, count, limits=limits, cancel=cancel)
    except ChildFailed as failure:
        raise NoPlanError(f"the plan failed when it was compiled once more: {failure.reason}") from None
    return [
        (claim.verification(known, seen.errors), seen)
        for claim, known, seen in zip(claims, values, observed, strict=True)
    ]


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

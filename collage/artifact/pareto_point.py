"""Another point of an artifact's Pareto front as an artifact of its own (`collage take`)."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from collage.artifact.artifact import Artifact, read_report, write_artifact
from collage.artifact.emit import footprint, verify_plan, versions_of
from collage.artifact.verification import VERIFICATION_KEY, Verification
from collage.backends.machine.process_policy import default_threads
from collage.backends.numerics.reference import table_bounds
from collage.backends.numerics.seeded import seeded_inputs
from collage.model.preparation import calibrates, computed, prepared_plan
from collage.model.reference import Reference
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import bits
from collage.partitioner.emit.annotate import read_plan
from collage.partitioner.emit.plan_json import decode_plan
from collage.partitioner.errors import BadInputError
from collage.runner import Runner


def read_front(path: Path) -> list[dict[str, Any]]:
    """The points of an artifact's Pareto front.

    Raises:
        BadInputError: the file is no artifact, or its run had no `pareto`.
    """
    points: list[dict[str, Any]] | None = read_report(path).get("front")
    if not points:
        raise BadInputError(f"{path} has no front; tune its model with --pareto")
    return points


def write_pareto_point(path: str | Path, point: int, output: str | Path) -> Artifact:
    """Write a point of a Pareto front as an artifact; its plan is compiled and verified here.

    Raises:
        BadInputError: there is no such point, or it needs more than the artifact holds.
        NoPlanError: its plan cannot be compiled here.
    """
    points = read_front(Path(path))
    if not 0 <= point < len(points):
        raise BadInputError(f"there is no point {point}; the front has 0 to {len(points) - 1}")
    chosen = points[point]
    stored = read_plan(Path(path))
    model, index = stored.model, stored.model.index
    again = f"tune its model with --tolerance {chosen['max_relative_error']:.3g} instead"
    if any(note.prepared for note in stored.notes):
        raise BadInputError(
            f"{path} has int8 partitions in the place of the model's own nodes; {again}"
        )
    known = decode_plan(model, json.dumps(chosen["plan"]))
    runner = Runner()
    if calibrates([runner.facts(target) for target in known.plan.targets]):
        raise BadInputError(
            f"point {point} was calibrated on samples that {path} does not hold; {again}"
        )
    error = chosen["max_relative_error"]
    inputs = [index.values[name] for name in index.inputs]
    seeds = Verification.from_text(stored.metadata[VERIFICATION_KEY]).seeds
    with tempfile.TemporaryDirectory(prefix="collage-take-") as folder:
        work = Path(folder)
        samples = [seeded_inputs(inputs, seed, table_bounds(index)) for seed in seeds]
        reference = Reference(model, samples, work / "reference")
        regions = RegionFiles(model, work / "regions")
        final = prepared_plan(known.plan, regions, work / "emit", default_threads(), runner)
        verification, observed = verify_plan(final, reference, seeds, error, default_threads(), runner)
        report = {
            **read_report(Path(path)),
            "partitions": [
                {
                    "target": str(partition.target),
                    "nodes": [index.nodes[i].name for i in bits(partition.nodes)],
                    **computed(runner.facts(partition.target)),
                    "latency_us": latency_us,
                    "alternatives": [],
                    "why": [f"point {point} of the front that was found at tuning"],
                }
                for partition, latency_us in zip(known.plan.partitions, known.latency_us, strict=True)
            ],
            "latency_us": chosen["latency_us"],
            "latency_interval_us": None,
            "speedup_over_best_single": None,
            "speedup_interval": None,
            "predicted_latency_us": None,
            "additive_error": None,
            "max_relative_error": error,
            "tolerance": max(error, 1e-3),
            "point": point,
            "objective": None,
            "footprint": footprint(final.model.path, observed),
        }
        return write_artifact(
            model=final.model,
            plan=final.plan,
            latency_us=known.latency_us,
            report=report,
            verification=verification,
            versions=versions_of(known.plan, runner),
            destination=Path(output),
            notes=final.notes,
            source_plan=json.dumps(chosen["plan"], sort_keys=True),
        )

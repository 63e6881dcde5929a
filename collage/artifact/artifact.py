"""The artifact: one ONNX file that carries its plan, its report and reference values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collage.artifact.verification import (
    VERIFICATION_KEY,
    Verification,
    digest_values,
    input_hashes,
)
from collage.backends.numerics.comparison import Expected
from collage.partitioner.candidate import Plan
from collage.partitioner.emit.annotate import SOURCE_PLAN_KEY, annotate, read_plan
from collage.partitioner.emit.plan_json import PartitionNote
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.sub_graph import SubGraph

REPORT_KEY = "collage.report"

# Other processors and versions round otherwise than those that made the artifact.
_HEADROOM = 4.0
# Less than one of the elements that are kept: exact values must be equal.
_OF_EXACT = 1e-3


@dataclass(frozen=True)
class Artifact:
    """A partitioned model on disk, with its report (docs/report.md) and its plan as JSON-ready data."""

    path: Path
    report: Mapping[str, Any]
    plan: Mapping[str, Any]


def crossing_values(model: Model, plan: Plan) -> list[str]:
    """The values that partitions make for others or for the caller, in order."""
    return [name for p in plan.partitions for name in SubGraph(model.index, p.nodes).outputs]


def make_verification(
    seeds: Sequence[int],
    samples: Sequence[Mapping[str, np.ndarray]],
    reference: Sequence[Mapping[str, Expected]],
    observed: Mapping[str, float],
    tolerance: float,
    bounds: Mapping[str, int] | None = None,
    given: Sequence[Mapping[str, np.ndarray]] = (),
) -> Verification:
    """Reference values for the artifact, with the error that each may have.

    Args:
        reference: per sample the reference of each value.
        observed: per value the error that the plan showed when it was made.
        tolerance: allowed for a value that showed less.
        bounds: what integer inputs of the samples stay below.
        given: the samples, where no seed makes them.
    """
    digests = digest_values(reference)
    allowed = {
        name: max(
            min(tolerance, _OF_EXACT) if digest.is_exact else tolerance,
            _HEADROOM * observed.get(name, 0.0),
        )
        for name, digest in digests[0].items()
    }
    hashes = tuple(input_hashes(s) for s in samples)
    return Verification(tuple(seeds), hashes, digests, allowed, bounds or {}, tuple(given))


def write_artifact(
    model: Model,
    plan: Plan,
    latency_us: Sequence[float | None],
    report: Mapping[str, Any],
    verification: Verification,
    versions: Mapping[str, str],
    destination: Path,
    notes: Sequence[PartitionNote] = (),
    source_plan: str = "",
) -> Artifact:
    """Write the annotated model with its report and reference values.

    Args:
        model: as it is emitted.
        latency_us: per partition what was measured.
        report: see docs/report.md.
        versions: of the programs that made the plan.
        notes: one for each partition; nothing is said without them.
        source_plan: the plan for the model that was given, where partitions were rewritten since.
    """
    metadata = {REPORT_KEY: json.dumps(report), VERIFICATION_KEY: verification.to_text()}
    if any(note.prepared for note in notes):
        metadata[SOURCE_PLAN_KEY] = source_plan
    more = notes or None
    annotate(model, plan, metadata, destination, latency_us=latency_us, versions=versions, notes=more)
    return Artifact(destination, report, json.loads(read_plan(destination).text))


def read_report(path: Path) -> dict[str, Any]:
    """The report inside an artifact.

    Raises:
        BadInputError: the file is not an artifact, or its report is damaged.
    """
    text = read_plan(path).metadata.get(REPORT_KEY)
    try:
        report = json.loads(text or "")
    except ValueError:
        raise BadInputError(f"{path} carries no report; tune the model again") from None
    if not isinstance(report, dict):
        raise BadInputError(f"{path} carries a damaged report; tune the model again")
    return report

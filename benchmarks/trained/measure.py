"""One trained model: tuned within the bound, and judged on samples that no tuning saw."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import collage
from benchmarks.trained.case import Case
from collage.accuracy.target_choice import EXACT_ERROR
from collage.backends.numerics.reference import reference_session, run_session
from collage.events import Listener
from collage.metrics.drop import Bound, compare
from collage.metrics.names import parse_metric
from collage.partitioner.ingest.normalize import normalize

MAX_DROP = 0.01


def measured(
    case: Case, targets: Sequence[str], time_limit_s: float, listener: Listener
) -> dict[str, Any]:
    """The row of a model.

    Args:
        case: with samples, of which the last third is kept from the tuning.
        targets: exact and reduced ones.
        time_limit_s: of the tuning.
        listener: hears what the tuning does.
    """
    count = len(next(iter(case.inputs.values())))
    given = count - count // 3
    with tempfile.TemporaryDirectory(prefix="collage-trained-") as folder:
        work = Path(folder)
        np.savez(work / "inputs.npz", allow_pickle=False, **_part(case.inputs, slice(given)))
        labels = None
        if case.labels:
            labels = work / "labels.npz"
            np.savez(labels, allow_pickle=False, **_part(case.labels, slice(given)))
        bound = {"max_drop": MAX_DROP} if case.at_least is None else {"at_least": case.at_least}
        artifact = collage.tune(
            case.model,
            targets,
            output=work / "tuned.onnx",
            inputs=work / "inputs.npz",
            labels=labels,
            evaluate=case.evaluate,
            dims=dict(case.dims),
            database=f"sqlite:///{work / 'costs.db'}",
            time_limit_s=time_limit_s,
            on_event=listener,
            **bound,
        )
        report = artifact.report
        return {
            "about": case.about,
            "evaluation": report["evaluation"],
            "unseen": _unseen(case, artifact.path, slice(given, count), work),
            "samples": [given, count - given],
            "seconds": report["seconds"]["total"],
            "partitions": [[part["target"], len(part["nodes"])] for part in report["partitions"]],
            "latency_us": report["latency_us"],
            **_beside_fp32(report),
            "warnings": [text for text in report["warnings"] if "other processes" in text],
        }


def _part(arrays: Mapping[str, np.ndarray], which: slice) -> dict[str, np.ndarray]:
    return {name: array[which] for name, array in arrays.items()}


def _beside_fp32(report: Mapping[str, Any]) -> dict[str, Any]:
    """The fastest single target that computes exactly, and our speed beside it."""
    exact = {
        plan["targets"][0]: plan["latency_us"]
        for plan in report["plans"]
        if plan["partitions"] == 1 and plan.get("max_relative_error", 1.0) <= EXACT_ERROR
        if "latency_us" in plan and plan["targets"][0] in report["targets"]
    }
    if not exact:
        return {"best_fp32": None, "speedup": None}
    best = min(exact, key=exact.__getitem__)
    return {"best_fp32": best, "speedup": exact[best] / report["latency_us"]}


def _unseen(case: Case, artifact: Path, which: slice, work: Path) -> dict[str, Any]:
    """How much worse the artifact does the task on samples that the tuning never saw."""
    metric = parse_metric(case.evaluate)
    session = reference_session(normalize(case.model, work / "plain", dict(case.dims)).path)
    before, after = [], []
    with collage.load(artifact, cache_dir=False) as ours:
        names = [output.name for output in session.get_outputs()]
        for i in range(which.start, which.stop):
            feed = {name: array[i] for name, array in case.inputs.items()}
            label = {name: array[i] for name, array in case.labels.items()} or None
            wanted = run_session(session, feed, names)
            made = dict(zip(names, ours.run(names, feed), strict=True))
            before.append(metric.item(wanted, wanted, label))
            after.append(metric.item(made, wanted, label))
    bound = Bound(at_least=case.at_least) if case.at_least is not None else Bound(max_drop=MAX_DROP)
    allowed = bound.allowed(metric, metric.score(before))
    drop = compare(metric, before, after, allowed, bool(case.labels))
    return {
        "reference": drop.reference,
        "score": drop.score,
        "drop": drop.worse,
        "upper": drop.upper if np.isfinite(drop.upper) else None,
        "allowed": allowed,
    }

"""One trained model: tuned within the bound, and judged on samples that no tuning saw."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import collage
from benchmarks.trained.case import Case
from benchmarks.trained.peers import nncf
from benchmarks.trained.peers.timed import PeerModel
from collage.accuracy.target_choice import exact_up_to
from collage.backends.numerics.reference import reference_session, run_session
from collage.events import Listener
from collage.metrics.drop import Bound, compare
from collage.metrics.names import parse_metric
from collage.partitioner.ingest.normalize import normalize

MAX_DROP = 0.01
# NNCF is given so many times what ours took.
_PATIENCE, _LEAST_S = 10.0, 600.0
_Run = Callable[[Sequence[str], Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


def measured(
    case: Case,
    targets: Sequence[str],
    time_limit_s: float,
    listener: Listener,
    with_nncf: bool = False,
) -> dict[str, Any]:
    """The row of a model.

    Args:
        case: with samples, of which the last third is kept from the tuning.
        targets: exact and reduced ones.
        time_limit_s: of the tuning.
        listener: hears what the tuning does.
        with_nncf: let NNCF do the same, and time both.
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
        artifact = collage.tune(
            case.model,
            list(dict.fromkeys((*targets, *case.targets))),
            output=work / "tuned.onnx",
            inputs=work / "inputs.npz",
            labels=labels,
            evaluate=case.evaluate,
            dims=dict(case.dims),
            database=f"sqlite:///{work / 'costs.db'}",
            time_limit_s=time_limit_s,
            on_event=listener,
            max_drop=MAX_DROP,
        )
        report = artifact.report
        plain = normalize(case.model, work / "plain", dict(case.dims)).path
        beside = _beside_fp32(report)
        row = {
            "about": case.about,
            "evaluation": report["evaluation"],
            "unseen": _unseen_of_ours(case, artifact.path, plain, given),
            "samples": [given, count - given],
            "seconds": report["seconds"]["total"],
            "partitions": [[part["target"], len(part["nodes"])] for part in report["partitions"]],
            "latency_us": report["latency_us"],
            **beside,
            "warnings": [text for text in report["warnings"] if "other processes" in text],
        }
        if with_nncf and beside["best_fp32"] is not None:
            row["nncf"] = _nncf(case, artifact.path, plain, work, row)
        return row


def _nncf(
    case: Case, artifact: Path, plain: Path, work: Path, row: Mapping[str, Any]
) -> dict[str, Any]:
    """What NNCF makes of the same model and samples.

    Args:
        plain: the model as it was tuned, in float.
        work: has the inputs and labels that the tuning got.
        row: of ours.
    """
    folder = work / "nncf"
    folder.mkdir()
    shutil.copy(plain, folder / "model.onnx")
    for name in ("inputs.npz", "labels.npz"):
        if (work / name).is_file():
            shutil.copy(work / name, folder / name)
    patience_s = max(_LEAST_S, _PATIENCE * row["seconds"])
    seconds = nncf.quantized(folder, case.evaluate, MAX_DROP, patience_s)
    if isinstance(seconds, str):
        return {"error": seconds}
    fp32 = collage.tune(
        case.model,
        [row["best_fp32"]],
        output=work / "fp32.onnx",
        dims=dict(case.dims),
        strategy="single",
        database=f"sqlite:///{work / 'costs.db'}",
    )
    peer = PeerModel(folder / "model.xml")
    return {
        "seconds": seconds,
        "unseen": _unseen(case, plain, row["samples"][0], lambda _, feed: peer.outputs(feed)),
        **nncf.timed([artifact, fp32.path, folder / "model.xml", folder / "inputs.npz"]),
    }


def _part(arrays: Mapping[str, np.ndarray], which: slice) -> dict[str, np.ndarray]:
    return {name: array[which] for name, array in arrays.items()}


def _beside_fp32(report: Mapping[str, Any]) -> dict[str, Any]:
    """The fastest single target that computes exactly, and our speed beside it."""
    wholes = {
        plan["targets"][0]: plan
        for plan in report["plans"]
        if plan["partitions"] == 1 and "latency_us" in plan and plan["targets"][0] in report["targets"]
    }
    errors = {target: plan.get("max_relative_error", 1.0) for target, plan in wholes.items()}
    limit = exact_up_to(errors.values())
    exact = {target: wholes[target]["latency_us"] for target, error in errors.items() if error <= limit}
    if not exact:
        return {"best_fp32": None, "speedup": None}
    best = min(exact, key=exact.__getitem__)
    return {"best_fp32": best, "speedup": exact[best] / report["latency_us"]}


def _unseen_of_ours(case: Case, artifact: Path, plain: Path, first: int) -> dict[str, Any]:
    with collage.load(artifact, cache_dir=False) as ours:

        def run(names: Sequence[str], feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return dict(zip(names, ours.run(names, feed), strict=True))

        return _unseen(case, plain, first, run)


def _unseen(case: Case, plain: Path, first: int, run: _Run) -> dict[str, Any]:
    """How much worse the task is done on samples that no tuning saw.

    Args:
        plain: the float model.
        first: the first one of these samples.
        run: computes the outputs with these names from a sample.
    """
    metric = parse_metric(case.evaluate)
    session = reference_session(plain)
    names = [output.name for output in session.get_outputs()]
    before, after = [], []
    for i in range(first, len(next(iter(case.inputs.values())))):
        feed = {name: array[i] for name, array in case.inputs.items()}
        label = {name: array[i] for name, array in case.labels.items()} or None
        wanted = run_session(session, feed, names)
        before.append(metric.item(wanted, wanted, label))
        after.append(metric.item(run(names, feed), wanted, label))
    allowed = Bound(max_drop=MAX_DROP).allowed(metric, metric.score(before))
    drop = compare(metric, before, after, allowed, bool(case.labels))
    return {
        "reference": drop.reference,
        "score": drop.score,
        "drop": drop.worse,
        "upper": drop.upper if np.isfinite(drop.upper) else None,
        "allowed": allowed,
    }

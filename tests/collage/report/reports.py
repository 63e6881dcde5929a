"""Reports as tuning runs make them, in the fields that people are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

OURS_US = 1000.0
ORT, OV = "onnxruntime", "openvino"


def report(
    ours: Sequence[str],
    baselines: Mapping[str, float | str | None],
    *,
    targets: Sequence[str] | None = None,
    plans: Sequence[dict[str, Any]] = (),
    spread: float = 0.01,
    **fields: Any,
) -> dict[str, Any]:
    """A report of a plan that takes a millisecond.

    Args:
        ours: the targets of the plan's partitions.
        baselines: by target, its time over the plan's, or why it cannot run.
        targets: as the caller gave them; by default the baselines'.
        plans: of the report, as `plan` makes them.
        spread: half the width of each confidence interval, relative.
        **fields: other fields of the report.
    """
    feasible = [ratio for ratio in baselines.values() if isinstance(ratio, float)]
    best = min(feasible, default=None)
    return {
        "targets": list(targets or baselines),
        "partitions": [
            {"target": target, "nodes": ["a"], "numbers": "f32", "latency_us": None} for target in ours
        ],
        "latency_us": OURS_US,
        "latency_interval_us": [OURS_US * 0.99, OURS_US * 1.01],
        "baselines": [_baseline(target, ratio, spread) for target, ratio in baselines.items()],
        "greedy_latency_us": None,
        "speedup_over_best_single": best,
        "speedup_interval": best and [best * (1 - spread), best * (1 + spread)],
        "max_relative_error": 1e-6,
        "tolerance": 1e-3,
        "metric": "max",
        "front": None,
        "plans": list(plans),
        "known_since": None,
        "candidates": {"total": 90, "unique": 80, "measured": 7, "from_cache": 2, "infeasible": 1},
        "search": {"objective_us": 1.0, "bound_us": 1.0, "optimal": True},
        "warnings": [],
        "seconds": {"total": 12.3},
        **fields,
    }


def plan(
    name: str, targets: Sequence[str], speedup: float, *, partitions: int = 2, high: float | None = None
) -> dict[str, Any]:
    """A plan that was timed, with its speedup over the best single target."""
    return {
        "name": name,
        "partitions": partitions,
        "targets": sorted(targets),
        "latency_us": OURS_US / speedup,
        "speedup_over_best_single": speedup,
        "speedup_interval": [speedup - 0.01, high or speedup + 0.01],
    }


def _baseline(target: str, ratio: float | str | None, spread: float) -> dict[str, Any]:
    if not isinstance(ratio, float):
        return {"target": target, "infeasible": ratio or "not measured"}
    return {
        "target": target,
        "latency_us": OURS_US * ratio,
        "latency_interval_us": [OURS_US * ratio * (1 - spread), OURS_US * ratio * (1 + spread)],
    }


def shape_row(
    length: int, ours: float, singles: dict[str, tuple[float | None, float]], number: int = 0
) -> dict[str, Any]:
    """A representative shape; by target its times for any shape and for this one."""
    return {
        "sizes": {"length": length},
        "weight": 0.5,
        "class": number,
        "latency_us": ours,
        "hot_latency_us": ours / 2 if number else None,
        "infeasible": None,
        "singles": [
            {"target": name, "any_shape_us": any_us, "this_shape_us": alone_us, "failure": None}
            for name, (any_us, alone_us) in singles.items()
        ],
    }


def shapes_report() -> dict[str, Any]:
    """The part of a report about a range of shapes."""
    rows = [
        shape_row(16, 1000.0, {ORT: (1000.0, 900.0), OV: (2000.0, 800.0)}),
        shape_row(512, 3000.0, {ORT: (6000.0, 6100.0), OV: (3000.0, 2900.0)}, 1),
    ]
    hot = {
        "partitions": 1,
        "targets": [OV],
        "treatment": "exact",
        "compile_s": 0.25,
        "from_request": 84,
    }
    one = {"partitions": 1, "treatment": "dynamic", "hot": None}
    return {
        "dims": {"length": "16..512"},
        "main": 1,
        "most_copies": 32,
        "classes": [
            {**one, "up_to": 40, "targets": [ORT]},
            {**one, "up_to": None, "targets": [OV], "hot": hot},
        ],
        "rows": rows,
        "weighted": {
            "latency_us": 2000.0,
            "singles": [
                {"target": ORT, "any_shape_us": 3500.0, "this_shape_us": None},
                {"target": OV, "any_shape_us": 2500.0, "this_shape_us": None},
            ],
        },
        "rss_bytes": {"ours": 300 << 20, ORT: 150 << 20},
    }

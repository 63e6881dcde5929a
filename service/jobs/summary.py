"""The numbers of a report that lists of jobs show, and JSON that is the same for the same data."""

from __future__ import annotations

import json
import math
from typing import Any


def summarize(report: dict[str, Any]) -> dict[str, Any]:
    """Latency, gain over the best single target, partitions, and the share of costs that were known."""
    candidates = report.get("candidates") or {}
    looked_up = (
        candidates.get("from_cache", 0)
        + candidates.get("measured", 0)
        + candidates.get("infeasible", 0)
    )
    return {
        "latency_us": report.get("latency_us"),
        "speedup": report.get("speedup_over_best_single"),
        "partitions": len(report.get("partitions", ())),
        "cached_share": candidates.get("from_cache", 0) / looked_up if looked_up else None,
    }


def as_json_bytes(data: Any) -> bytes:
    """Data as JSON that every reader takes: numbers that JSON lacks become null."""
    return json.dumps(_finite(data), indent=1, ensure_ascii=False, allow_nan=False).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value

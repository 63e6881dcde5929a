"""What the trials of a tuning found, as the report has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collage.objectives.goal import Goal
from collage.objectives.halving import Tried


def outcome(goal: Goal, tried: Sequence[Tried] = (), chosen: Tried | None = None) -> dict[str, Any]:
    """The part `objective` of a report as JSON-ready data; docs/report.md describes it.

    Args:
        goal: what was tuned for.
        tried: the settings that were measured or failed.
        chosen: the one that the artifact has.
    """
    on_front = _front([each for each in tried if each.measured])
    return {
        "name": goal.objective,
        "p99_ms": None if goal.p99_us is None else goal.p99_us / 1e3,
        "max_latency_ms": None if goal.median_us is None else goal.median_us / 1e3,
        "met": None if chosen is None else goal.excess(chosen.result) <= 1.0,
        "settings": [_setting(each, each in on_front, each is chosen) for each in tried],
    }


def unmet(objective: Mapping[str, Any] | None) -> list[str]:
    """What to tell where no setting kept the bound, or none was measured."""
    if objective is None or objective["name"] == "latency" or objective["met"]:
        return []
    if objective["met"] is None:
        return [
            f"no setting could be measured for {objective['name']}, so the plan is that of the lowest latency; allow "
            "more with --time-limit"
        ]
    bounds = [ms for name in ("p99_ms", "max_latency_ms") if (ms := objective[name]) is not None]
    told = " and ".join(f"{ms:g} ms" for ms in bounds)
    return [
        f"no setting keeps the bound{'s' * (len(bounds) > 1)} of {told}; the nearest is returned: give a looser bound or "
        "faster targets"
    ]


def _front(ran: Sequence[Tried]) -> list[Tried]:
    """The settings that no other one beats in latency, throughput and memory together."""
    points = [(t.result.median_us, -t.result.throughput, t.result.peak_rss_bytes) for t in ran]
    return [
        each
        for each, own in zip(ran, points, strict=True)
        if not any(p != own and all(a <= b for a, b in zip(p, own, strict=True)) for p in points)
    ]


def _setting(tried: Tried, on_front: bool, chosen: bool) -> Mapping[str, Any]:
    setting = tried.setting
    said = {
        "name": setting.name,
        "targets": [str(target) for target in setting.plan.targets],
        "partitions": len(setting.plan.partitions),
        "instances": setting.instances,
        "threads": setting.threads,
        "rows": setting.rows,
        "stages": list(setting.stages),
    }
    if tried.failure is not None:
        return {**said, "failure": tried.failure}
    result = tried.result
    return {
        **said,
        "throughput_per_s": result.throughput,
        "median_us": result.median_us,
        "p99_us": result.p99_us,
        "requests": result.requests,
        "peak_rss_bytes": result.peak_rss_bytes,
        "load_s": result.load_s,
        "on_front": on_front,
        "chosen": chosen,
    }

"""The answer of a job for people: a banner, the plans that were timed, and what failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from collage.report import objective, shapes
from collage.report.verdict import Speedup, speedups, title, verdict

Tone = Literal["good", "same", "warn", "bad"]
_REFERENCE = "onnxruntime"
_SLOW = 1.15  # a target is worth a diagnosis where it takes so many times as long


@dataclass(frozen=True)
class Banner:
    """The outcome in words."""

    tone: Tone  # a mix wins, one target is the answer, or nothing is proven
    headline: str
    sentence: str
    warning: str | None


@dataclass(frozen=True)
class PlanBar:
    """A plan that was timed, or why it was not."""

    name: str
    targets: Sequence[str]  # each once
    partitions: int
    latency_us: float | None
    low_us: float | None  # lower end of the 95 % interval, where there is one
    high_us: float | None
    error: float | None
    reason: str | None
    is_returned: bool
    is_single: bool
    speedup: float | None = None
    speedup_interval: Sequence[float] | None = None


def banner(report: Mapping[str, Any]) -> Banner:
    """The outcome of a report in words."""
    if report.get("shapes"):
        return _shapes_banner(report["shapes"])
    said = verdict(report)
    ours = [str(part["target"]) for part in report["partitions"]]
    others = [one for one in speedups(report) if ours != [one.target]]
    served = objective.chosen(report)
    if served is not None:
        met = report["objective"]["met"]
        headline = f"{objective.rate(served)} requests per second, {objective.at_once(served)}"
        return Banner("good" if met else "warn", headline, said.sentence, None)
    if said.warning is not None:
        return Banner("warn", _not_proven(ours, others), said.sentence, said.warning)
    if len(set(ours)) > 1:
        return Banner("good", _gain(others), said.sentence, None)
    if others and others[0].high < 1.0:
        return Banner("warn", _not_proven(ours, others), said.sentence, None)
    if report.get("search") is None:
        return Banner("same", f"{title(ours[0])} is returned", said.sentence, None)
    return Banner("same", f"No mix wins: use {title(ours[0])}", said.sentence, None)


def _shapes_banner(found: Mapping[str, Any]) -> Banner:
    weighted = found["weighted"]
    known = [one["any_shape_us"] for one in weighted["singles"] if one["any_shape_us"] is not None]
    gain = min(known) / weighted["latency_us"] if known else None
    ranges = ", ".join(f"{name} {text}" for name, text in found["dims"].items())
    headline = f"One artifact for {ranges}"
    if gain is not None:
        headline += f": {gain:.2f} × the best single runtime"
    return Banner(
        "good" if gain is not None and gain > 1.005 else "same", headline, shapes.sentence(found), None
    )


def settings_picture(report: Mapping[str, Any]) -> str | None:
    """The settings that were measured with several requests at once, as SVG; None where there were none."""
    settings = objective.measured(report)
    return objective.draw_settings(settings) if settings else None


def _not_proven(ours: Sequence[str], others: Sequence[Speedup]) -> str:
    name = title(ours[0]) if len(ours) == 1 else f"a mix of {len(set(ours))} targets"
    best = f" than {title(others[0].target)}" if others else ""
    known = "Slower" if others and others[0].high < 1.0 else "Not proven faster"
    return f"{known}{best}: {name} is returned"


def _gain(others: Sequence[Speedup]) -> str:
    if not others:
        return "Only a mix of targets runs this model"
    best = others[0]
    said = f"{best.ratio:.2f} × the best single target, {title(best.target)}"
    reference = next((one for one in others if one.target.split()[0] == _REFERENCE), None)
    if reference is None or reference is best:
        return f"{best.ratio:.2f} × as fast as {title(best.target)}, the best single target"
    return f"{reference.ratio:.2f} × as fast as {title(reference.target)}, {said}"


def suspects(
    report: Mapping[str, Any] | None, targets: Sequence[str], state: str
) -> list[tuple[str, str]]:
    """Targets of a job that failed or are slow, each with the reason in short: worth a diagnosis.

    Args:
        report: of the job; None where there is none.
        targets: those of the job.
        state: of the job.
    """
    if report is None:
        return [(target, "the job failed") for target in targets] if state == "failed" else []
    found = []
    timed = [b["latency_us"] for b in report.get("baselines", ()) if b.get("latency_us")]
    best_us = min([float(report["latency_us"]), *timed])
    for baseline in report.get("baselines", ()):
        target = str(baseline["target"])
        if baseline.get("infeasible"):
            found.append((target, "it failed"))
        elif baseline.get("exceeds_tolerance"):
            found.append((target, f"its error is {baseline['exceeds_tolerance']:.1e}"))
        elif baseline.get("latency_us", 0.0) > _SLOW * best_us:
            ratio = baseline["latency_us"] / best_us
            found.append((target, f"it takes {ratio:.2f} × as long as the fastest"))
    return found


def plan_bars(report: Mapping[str, Any]) -> list[PlanBar]:
    """Every plan of a report, the fastest first; those that could not run come last."""
    baselines = {str(each["target"]): each for each in report.get("baselines", ())}
    bars = [_plan_bar(plan, report, baselines) for plan in report.get("plans", ())]
    known = {bar.targets[0] for bar in bars if bar.is_single and bar.targets}
    for target, baseline in baselines.items():
        if target not in known:
            bars.append(_baseline_bar(target, baseline))
    if not any(bar.is_returned for bar in bars):
        bars.append(_returned_bar(report))
    return sorted(bars, key=lambda bar: (bar.latency_us is None, bar.latency_us or 0.0, bar.name))


def _plan_bar(
    plan: Mapping[str, Any], report: Mapping[str, Any], baselines: Mapping[str, Mapping[str, Any]]
) -> PlanBar:
    latency_us = plan.get("latency_us")
    targets = list(dict.fromkeys(str(target) for target in plan.get("targets", ())))
    is_single = plan.get("partitions") == 1
    ours = {str(part["target"]) for part in report["partitions"]}
    is_returned = (
        latency_us is not None
        and latency_us == report["latency_us"]
        and plan.get("partitions") == len(report["partitions"])
        and set(targets) == ours
    )
    interval = _interval(plan)
    if is_returned:
        interval = report.get("latency_interval_us")
    elif is_single and targets and "latency_interval_us" in baselines.get(targets[0], {}):
        interval = baselines[targets[0]]["latency_interval_us"]
    low_us, high_us = interval or (None, None)
    return PlanBar(
        name=str(plan["name"]),
        targets=targets,
        partitions=int(plan.get("partitions", 0)),
        latency_us=latency_us,
        low_us=low_us,
        high_us=high_us,
        error=plan.get("max_relative_error"),
        reason=plan.get("infeasible"),
        is_returned=is_returned,
        is_single=is_single,
        speedup=plan.get("speedup_over_best_single"),
        speedup_interval=plan.get("speedup_interval"),
    )


def _interval(plan: Mapping[str, Any]) -> tuple[float, float] | None:
    """The interval of a plan's latency, from that of its ratio to the best single target."""
    latency_us, ratio = plan.get("latency_us"), plan.get("speedup_over_best_single")
    low, high = plan.get("speedup_interval") or (None, None)
    if latency_us is None or not ratio or not low or not high or low == high:
        return None
    return latency_us * ratio / high, latency_us * ratio / low


def _baseline_bar(target: str, baseline: Mapping[str, Any]) -> PlanBar:
    low_us, high_us = baseline.get("latency_interval_us") or (None, None)
    return PlanBar(
        name=f"single {target}",
        targets=[target],
        partitions=1,
        latency_us=baseline.get("latency_us"),
        low_us=low_us,
        high_us=high_us,
        error=baseline.get("exceeds_tolerance"),
        reason=baseline.get("infeasible"),
        is_returned=False,
        is_single=True,
    )


def _returned_bar(report: Mapping[str, Any]) -> PlanBar:
    low_us, high_us = report.get("latency_interval_us") or (None, None)
    targets = list(dict.fromkeys(str(part["target"]) for part in report["partitions"]))
    return PlanBar(
        name="returned plan",
        targets=targets,
        partitions=len(report["partitions"]),
        latency_us=report["latency_us"],
        low_us=low_us,
        high_us=high_us,
        error=report.get("max_relative_error"),
        reason=None,
        is_returned=True,
        is_single=len(report["partitions"]) == 1,
        speedup=report.get("speedup_over_best_single"),
        speedup_interval=report.get("speedup_interval"),
    )

"""The answer of a report in one sentence: what is the fastest, by how much, and whether that is proven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collage.report import objective

_TITLES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "mnn": "MNN", "torch": "PyTorch"}
_FIXED_PLANS = {
    "greedy": "the greedy plan",
    "priority": "the plan by priority",
    "given plan": "the given plan",
    "pinned plan": "the pinned plan",
}
_RAN = "ran the whole model within the tolerance"
_REFERENCE = "onnxruntime"
# Runtimes differ by this much in exact arithmetic; a larger tolerance is a budget.
_EXACT_TOLERANCE = 2e-3


@dataclass(frozen=True)
class Speedup:
    """How many times as fast the returned plan is as a single target.

    Args:
        target: the single target.
        ratio: its latency over the returned plan's.
        low: lower end of the 95 % confidence interval.
        high: upper end.
    """

    target: str
    ratio: float
    low: float
    high: float

    @property
    def is_proven(self) -> bool:
        """True when the whole interval lies above one."""
        return self.low > 1.0


@dataclass(frozen=True)
class Verdict:
    """The answer of a report.

    Args:
        sentence: what is the fastest, and by how much.
        warning: why that is not proven; None where it is.
    """

    sentence: str
    warning: str | None = None


def verdict(report: Mapping[str, Any]) -> Verdict:
    """The answer of a report, as `collage.report.report` describes it."""
    ours = [str(partition["target"]) for partition in report["partitions"]]
    served = objective.sentence(report)
    if served is not None:
        what = _mix(ours) if len(ours) > 1 else title(ours[0])
        return Verdict(f"{what} {'are' if len(ours) > 1 else 'is'} returned {served}{_error(report)}.")
    others = [one for one in speedups(report) if ours != [one.target]]
    if report["search"] is None:
        said = _without_search(report, ours, others)
    elif len(ours) > 1:
        said = _of_a_mix(ours, others)
    elif ours[0] in report["targets"]:
        said = _of_a_single(report, ours[0], others)
    else:
        said = _of_a_variant(report, ours[0], others)
    return Verdict(f"{said.sentence}{_error(report)}.", said.warning)


def speedups(report: Mapping[str, Any]) -> list[Speedup]:
    """How the returned plan compares with each single target that may be used, the fastest one first."""
    latency_us = report["latency_us"]
    found = [
        Speedup(
            baseline["target"],
            baseline["latency_us"] / latency_us,
            baseline["latency_interval_us"][0] / latency_us,
            baseline["latency_interval_us"][1] / latency_us,
        )
        for baseline in report["baselines"]
        if "infeasible" not in baseline and "exceeds_tolerance" not in baseline
    ]
    return sorted(found, key=lambda one: one.ratio)


def fastest_mix(report: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The fastest timed plan that uses several targets; None without any."""
    mixes = [p for p in report["plans"] if len(set(p["targets"])) > 1 and "latency_us" in p]
    return min(mixes, key=lambda plan: plan["latency_us"], default=None)


def title(target: str) -> str:
    """A target as people write it: OpenVINO, or OpenVINO with -threads=1."""
    backend, _, options = target.partition(" ")
    name = _TITLES.get(backend, backend)
    return f"{name} with {options}" if options else name


def _of_a_mix(ours: Sequence[str], others: Sequence[Speedup]) -> Verdict:
    mix = _mix(ours)
    if not others:
        return Verdict(f"{mix} are the fastest; no single target {_RAN}")
    best, *rest = others
    if not best.is_proven:
        return _unproven(f"{mix} are returned", best)
    compared = [f"{best.ratio:.2f} × the best single target {best.target}", *_reference(rest)]
    return Verdict(f"{mix} are the fastest: {', '.join(compared)}")


def _of_a_single(report: Mapping[str, Any], target: str, others: Sequence[Speedup]) -> Verdict:
    name, mixes = title(target), _about_mixes(report)
    if not others:
        if len(report["targets"]) == 1:
            return Verdict(f"{name} is the only target given, and nothing faster was found")
        return Verdict(f"{name} alone is returned: no other target {_RAN}{mixes}")
    if tied := _tied(others):
        return Verdict(f"{name} alone is returned{tied}{mixes}")
    return Verdict(f"{name} alone is the fastest: {_against(others)}{mixes}")


def _of_a_variant(report: Mapping[str, Any], target: str, others: Sequence[Speedup]) -> Verdict:
    name, mixes = title(target), _about_mixes(report)
    if not others:
        return Verdict(f"{name} is the fastest; no target as given {_RAN}{mixes}")
    best, *rest = others
    if not best.is_proven:
        return _unproven(f"{name} is returned", best)
    compared = [f"{_times(best)} as given", *_reference(rest)]
    return Verdict(f"{name} is the fastest: {', '.join(compared)}{mixes}")


def _of_a_fixed_plan(name: str, ours: Sequence[str], others: Sequence[Speedup]) -> Verdict:
    """A plan that the caller asked for."""
    what = _mix(ours) if len(ours) > 1 else title(ours[0])
    said = f"{name[0].upper()}{name[1:]}, {what}, is returned"
    if not others:
        return Verdict(f"{said}; no other target {_RAN}")
    best, *rest = others
    if not best.is_proven:
        return _unproven(said, best)
    return Verdict(f"{said}: {', '.join([_times(best), *_reference(rest)])}")


def _without_search(
    report: Mapping[str, Any], ours: Sequence[str], others: Sequence[Speedup]
) -> Verdict:
    asked = next((name for p in report["plans"] if (name := _fixed_plan(p, ours)) is not None), None)
    if asked is not None:
        return _of_a_fixed_plan(asked, ours, others)
    unsearched = "; mixes were not searched"
    if len(ours) > 1:
        of_mix = _of_a_mix(ours, others)
        return Verdict(f"{of_mix.sentence}; other mixes were not searched", of_mix.warning)
    name = title(ours[0])
    if not others:
        return Verdict(f"{name} is the only single target that runs{unsearched}")
    if others[0].high < 1.0:
        slower = _unproven(f"{name} is returned", others[0])
        return Verdict(f"{slower.sentence}{unsearched}", slower.warning)
    if tied := _tied(others):
        return Verdict(f"{name} is returned{tied}{unsearched}")
    return Verdict(f"{name} is the fastest single target: {_against(others)}{unsearched}")


def _fixed_plan(plan: Mapping[str, Any], ours: Sequence[str]) -> str | None:
    """A timed plan's name where it is the returned one and can have been asked for, else None."""
    is_ours = len(ours) == plan["partitions"] and set(ours) == set(plan["targets"])
    return _FIXED_PLANS.get(plan["name"]) if is_ours and "latency_us" in plan else None


def _tied(others: Sequence[Speedup]) -> str:
    """What is not proven to be slower, beside how much faster the returned plan is than ONNX Runtime; empty for nothing."""
    tied = [one for one in others if not one.is_proven]
    if not tied:
        return ""
    compared = "".join(f": {one}" for one in _reference([o for o in others if o not in tied]))
    names = " or ".join(f"{title(one.target)} ({one.ratio:.2f} ×)" for one in tied)
    return f"{compared}; not proven faster than {names}"


def _unproven(returned: str, best: Speedup) -> Verdict:
    slower = best.high < 1.0
    known = "slower" if slower else "not proven faster"
    return Verdict(
        f"{returned}: {best.ratio:.2f} × {title(best.target)}, so {known}",
        f"the plan is {known} than {title(best.target)} alone: "
        f"{best.ratio:.3f} × [{best.low:.3f}, {best.high:.3f}]",
    )


def _about_mixes(report: Mapping[str, Any]) -> str:
    """What became of plans of several targets."""
    if len(report["targets"]) < 2:
        return ""
    nearest = fastest_mix(report)
    if nearest is None:
        is_sure = report["search"] is not None and report["search"]["optimal"]
        return "; no mix is predicted to be faster" if is_sure else "; the search found no faster mix"
    _, high = nearest.get("speedup_interval", (0.0, 0.0))
    is_tie = high >= (report["speedup_over_best_single"] or 1.0)
    return "; no mix was proven faster" if is_tie else "; no mix was faster"


def _against(others: Sequence[Speedup]) -> str:
    """ONNX Runtime where it was timed, else the next best."""
    return ", ".join(_reference(others)) or f"{_times(others[0])}, the next best"


def _reference(others: Sequence[Speedup]) -> list[str]:
    same = [one for one in others if one.target.split()[0] == _REFERENCE]
    return [_times(min(same, key=lambda one: len(one.target)))] if same else []


def _times(one: Speedup) -> str:
    return f"{one.ratio:.2f} × {title(one.target)}"


def _mix(targets: Sequence[str]) -> str:
    return f"{len(targets)} partitions ({', '.join(dict.fromkeys(targets))})"


def _error(report: Mapping[str, Any]) -> str:
    """How much of an accuracy budget the plan uses; empty where exact arithmetic was asked for."""
    error, tolerance = report["max_relative_error"], report["tolerance"]
    if error is None or (report["metric"] == "max" and tolerance <= _EXACT_TOLERANCE):
        return ""
    return f"; its error is {error:.2g} of {tolerance:.2g} allowed"

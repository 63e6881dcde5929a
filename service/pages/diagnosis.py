"""Diagnoses and watches for people: banners, and a chart of the error by depth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collage.diagnosis.untried import untried
from collage.report.verdict import title
from collage.service.pages.answer import Banner, Tone
from collage.service.pages.formats import sentence

_LEAST_ERROR = 1e-9  # smaller ones are drawn as this
_SHOWN = 3
_DOES = {
    "wrong": "computes wrong values",
    "crash": "crashes",
    "hang": "does not come back",
    "out of memory": "runs out of memory",
    "refused": "refuses the model",
}


@dataclass(frozen=True)
class DepthPoint:
    """A value inside the model, with places in percent of the chart."""

    x: float
    y: float
    about: str


@dataclass(frozen=True)
class DepthChart:
    """Errors over depth, on a logarithmic scale from the bottom up."""

    points: list[DepthPoint]
    ticks: list[tuple[float, str]]
    tolerance: float  # its place
    marks: list[tuple[float, str]]  # place and name of each culprit

    @property
    def line(self) -> str:
        """The points as SVG takes them."""
        return " ".join(f"{point.x:.2f},{point.y:.2f}" for point in self.points)


def diagnosis_banner(report: Mapping[str, Any]) -> Banner:
    """The outcome of a diagnosis in words."""
    name, culprits = title(str(report["target"])), report["faults"]["culprits"]
    if culprits:
        return _faults(name, culprits)
    if (left := untried(report)) is not None:
        return Banner("warn", f"It is not known whether {name} is right", f"{left}.", None)
    right = f"{name} is right on every node"
    if report["refused"]:
        nodes = sum(int(row["nodes"]) for row in report["refused"])
        right = f"{name} is right on every node that it takes"
        return Banner("warn", right, f"It does not take {nodes} of {report['nodes']} nodes.", None)
    whole = report["speed"].get("whole")
    error = _largest(report)
    if whole is None:
        return Banner("good", right, error, None)
    other = report["speed"]["sides"][1]
    beside = title(str(other["target"]))
    if other["python"] != "this one":
        beside += f" {other['version']} in {other['python']}"
    low, high = whole["ratio_interval"]
    said = f"It takes {whole['ratio']:.2f} × as long as {beside} ({low:.2f} to {high:.2f}). {error}"
    regions = report["speed"].get("regions") or ()
    if not regions and report["speed"].get("note"):
        return Banner("good", right, said, None)
    if not regions:
        return Banner("good", f"{right}, and no region is slow", said, None)
    one = len(regions) == 1
    count = "one region" if one else f"{len(regions)} regions"
    share = "That region takes more than its share." if one else "These take more than their share."
    return Banner("warn", f"{name} is slow in {count}", f"{said} {share}", None)


def watch_banner(report: Mapping[str, Any]) -> Banner:
    """The outcome of a watched artifact's measurement in words."""
    results = report["results"]
    worst = [each for each in results if each["verdict"] in ("failed", "wrong", "slower")]
    faster = [each for each in results if each["verdict"] == "faster"]
    chosen = (worst or faster or results)[0]
    where = "here" if chosen["environment"] == "this one" else f"in {chosen['environment']}"
    said = {
        "failed": f"It does not run {where}",
        "wrong": f"It is wrong {where}",
        "slower": f"It is slower {where}",
        "faster": f"It is faster {where}",
        "same": "Nothing changed",
    }[chosen["verdict"]]
    tone: Tone = "bad" if worst else "good" if faster else "same"
    return Banner(tone, said, sentence(str(chosen["reason"])), None)


def _faults(name: str, culprits: list[Mapping[str, Any]]) -> Banner:
    kinds = list(dict.fromkeys(str(culprit["operators"]) for culprit in culprits))
    shown = ", ".join(kinds[:_SHOWN]) + (" and others" if len(kinds) > _SHOWN else "")
    outcomes = list(dict.fromkeys(str(culprit["outcome"]) for culprit in culprits))
    does = " and ".join(_DOES.get(outcome, outcome) for outcome in outcomes)
    places = "one place" if len(culprits) == 1 else f"{len(culprits)} places"
    reproduced = sum(bool((culprit.get("reproducer") or {}).get("reproduced")) for culprit in culprits)
    told = f"{reproduced} of {len(culprits)} reproduced by a script in the download."
    return Banner("bad", f"{name} {does} at {places}", f"{shown}. {told}", None)


def _largest(report: Mapping[str, Any]) -> str:
    errors = [region.get("error") for region in report["faults"]["regions"]]
    numbers = [error for error in errors if isinstance(error, int | float)]
    if not numbers:
        return ""
    error = f"{max(numbers):.1e}".replace("-", "\N{NON-BREAKING HYPHEN}")
    return f"Its largest error is {error}, of {report['tolerance']:g} that are allowed."


def depth_chart(report: Mapping[str, Any]) -> DepthChart | None:
    """The chart of a report; None where nothing is wrong as a whole."""
    depth = report["faults"]["error_by_depth"]
    if depth is None or not depth["values"]:
        return None
    values = depth["values"]
    errors = [e for each in values if isinstance(e := each["error"], int | float)]
    last = max(1, int(depth["nodes"]) - 1)
    low = math.log10(_LEAST_ERROR)
    high = math.ceil(math.log10(10 * max([report["tolerance"], _LEAST_ERROR, *errors])))

    def x(position: int) -> float:
        return 100.0 * position / last

    def y(error: float | str) -> float:
        exponent = math.log10(max(error, _LEAST_ERROR)) if not isinstance(error, str) else high
        return 100.0 * (high - min(exponent, high)) / (high - low)

    points = []
    for each in values:
        error = each["error"] if isinstance(each["error"], str) else f"{each['error']:.2g}"
        about = f"{each['node']} ({each['op']}), {each['value']}: {error}"
        points.append(DepthPoint(x(each["position"]), y(each["error"]), about))
    step = max(1, (high - int(low)) // 6)
    return DepthChart(
        points=points,
        ticks=[(y(10.0**e), f"1e{e}") for e in range(int(low), high + 1, step)],
        tolerance=y(report["tolerance"]),
        marks=[(x(int(mark["position"])), str(mark["node"])) for mark in depth["marks"]],
    )

"""The tables and the picture of the results of `benchmarks.prediction`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.prediction.estimates import rank_correlation
from benchmarks.prediction.plans import PlanResult, kendall, median_error
from collage.costs.measurement_context import BORDER_US, CALL_US

_COLORS = (
    *("#1b6ca8", "#c1440e", "#2e7d32", "#7b1fa2", "#a16a00", "#00838f", "#ad1457"),
    *("#455a64", "#000000", "#6a994e", "#e76f51", "#5e60ce", "#9c6644"),
)


@dataclass(frozen=True)
class Score:
    """How one protocol did on one model.

    Args:
        error: the median error's magnitude.
        bias: the median error, positive where predictions are too high.
        tau: Kendall's τ among the `pairs` pairs of plans that differ by more than noise.
    """

    error: float
    bias: float
    tau: float
    pairs: int


def outcomes(result: Mapping[str, Any], protocol: str) -> list[PlanResult]:
    """The predicted and the measured latency of each plan, both at the median of its rounds."""
    found = []
    promises = result["promised_us"][protocol]
    for plan, kept_us, promised_us in zip(result["plans"], result["plans_us"], promises, strict=True):
        borders_us = CALL_US * len(plan["parts"]) + BORDER_US * plan["values"]
        # Each round's prediction and plan are of one moment, so only their ratio counts.
        ratios = [(p + borders_us) / kept for p, kept in zip(promised_us, kept_us, strict=True)]
        measured_us = statistics.median(kept_us)
        found.append(PlanResult(statistics.median(ratios) * measured_us, measured_us))
    return found


def score(result: Mapping[str, Any], protocol: str) -> Score:
    """How well the parts, measured under a protocol, predicted the plans of a model."""
    found = outcomes(result, protocol)
    tau, pairs = kendall([outcome.predicted_us for outcome in found], result["plans_us"])
    bias = statistics.median(outcome.error for outcome in found)
    return Score(median_error(found), bias, tau, pairs)


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a row for each model, per protocol the median error, the bias and τ."""
    protocols = list(dict.fromkeys(p for result in results for p in result["parts_us"]))
    lines = ["| model | ms |" + "".join(f" {p} |" for p in protocols)]
    lines.append("|---" * (len(protocols) + 2) + "|")
    scores: dict[str, list[Score]] = {p: [] for p in protocols}
    for result in results:
        times = [statistics.median(kept) for kept in result["plans_us"]]
        cells = [result["model"], f"{min(times) / 1e3:.1f} to {max(times) / 1e3:.1f}"]
        for protocol in protocols:
            if protocol not in result["parts_us"]:
                cells.append("–")
                continue
            found = score(result, protocol)
            scores[protocol].append(found)
            cells.append(f"{found.error:.1%} ({found.bias:+.1%}), {found.tau:.2f} of {found.pairs}")
        lines.append("| " + " | ".join(cells) + " |")
    cells = ["**median**", ""]
    for protocol in protocols:
        own = scores[protocol]
        error, tau = (statistics.median(getattr(s, name) for s in own) for name in ("error", "tau"))
        cells.append(f"**{error:.1%}, {tau:.2f}** ({len(own)} models)")
    return "\n".join([*lines, "| " + " | ".join(cells) + " |"]) + "\n"


def estimate_table(results: Sequence[Mapping[str, Any]], protocol: str) -> str:
    """Markdown: per model how profiles of the whole model rank its parts, and what they leave open."""
    lines = ["| model | τ of estimates against measured parts | profiled time without a node |"]
    lines.append("|---|---|---|")
    for result in results:
        if protocol not in result["parts_us"] or not result.get("estimates_us"):
            continue
        tau = rank_correlation(result["estimates_us"], result["parts_us"][protocol])
        shares = ", ".join(f"{target} {share:.0%}" for target, share in result["unmapped"].items())
        lines.append(f"| {result['model']} | {tau:.2f} | {shares} |")
    return "\n".join(lines) + "\n"


def picture(results: Sequence[Mapping[str, Any]], protocol: str) -> str:
    """Measured over predicted milliseconds of every plan on logarithmic axes, as SVG."""
    shown = [result for result in results if protocol in result["parts_us"]]
    points = {result["model"]: outcomes(result, protocol) for result in shown}
    every = [us for found in points.values() for o in found for us in (o.predicted_us, o.measured_us)]
    low, high = math.log10(min(every)) - 0.05, math.log10(max(every)) + 0.05

    def place(us: float) -> float:
        return (math.log10(us) - low) / (high - low)

    def at(outcome: PlanResult) -> str:
        x, y = 60 + 400 * place(outcome.predicted_us), 430 - 400 * place(outcome.measured_us)
        return f'cx="{x:.1f}" cy="{y:.1f}"'

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 475" font-family="sans-serif" '
        'font-size="12"><rect width="620" height="475" fill="white"/>',
        '<line x1="60" y1="430" x2="460" y2="30" stroke="#888" stroke-dasharray="4 4"/>',
        '<text x="260" y="468" text-anchor="middle">predicted, ms</text>',
        '<text x="10" y="20">measured, ms</text>',
    ]
    for ms in _ticks(low, high):
        x, y = 60 + 400 * place(ms * 1e3), 430 - 400 * place(ms * 1e3)
        parts.append(f'<line x1="60" x2="460" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>')
        parts.append(f'<text x="54" y="{y + 4:.1f}" text-anchor="end">{ms:g}</text>')
        parts.append(f'<text x="{x:.1f}" y="448" text-anchor="middle">{ms:g}</text>')
    for number, (model, found) in enumerate(points.items()):
        color = _COLORS[number % len(_COLORS)]
        parts += [f'<circle {at(o)} r="3" fill="{color}" fill-opacity="0.7"/>' for o in found]
        parts.append(f'<text x="475" y="{45 + 18 * number}" fill="{color}">{model}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _ticks(low: float, high: float) -> Iterable[float]:
    """1, 2 and 5 times powers of ten that lie between two logarithms of microseconds, in ms."""
    for power in range(math.floor(low), math.ceil(high) + 1):
        for digit in (1, 2, 5):
            if low <= math.log10(digit) + power <= high:
                yield digit * 10.0**power / 1e3

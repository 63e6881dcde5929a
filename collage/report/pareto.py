"""The Pareto front of latency against error: the timed plans that no other beats in both.

A point is a plan that ran and was verified on every sample. The most exact come first: the fastest plan
that computes exactly, then each faster one that errs more. A plan that is hardly faster than a more
exact one is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collage.artifact.artifact import read_report
from collage.artifact.pareto_point import read_front
from collage.partitioner.emit.plan_json import encode_plan
from collage.partitioner.graph.model import Model
from collage.timing.estimates import Estimates
from collage.timing.standings import Standings
from collage.timing.timed_plan import TimedPlan

_WORTH_A_POINT = 0.99
# Errors of exact arithmetic in another order; smaller differences do not order plans.
_ROUNDING = 2e-3
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _MARGIN = 640, 400, 70, 50, 24


def front(model: Model, standings: Standings, winner: TimedPlan) -> list[dict[str, Any]]:
    """The points of the front as JSON-ready data, the most exact first, at the winner's pace."""
    timed = [entry for entry in standings.entries if entry.timed and entry.error is not None]
    by_error = sorted(timed, key=lambda e: (max(e.error or 0.0, _ROUNDING), standings.ratio(e)))
    kept: list[TimedPlan] = []
    for entry in by_error:
        if not kept or standings.ratio(entry) < standings.ratio(kept[-1]) * _WORTH_A_POINT:
            kept.append(entry)
    estimates = standings.estimates
    return [_point(model, i, entry, kept[0], winner, estimates) for i, entry in enumerate(kept)]


def _point(
    model: Model,
    number: int,
    entry: TimedPlan,
    first: TimedPlan,
    winner: TimedPlan,
    estimates: Estimates,
) -> dict[str, Any]:
    gain = estimates.between(first, entry)
    latency_us, *_ = estimates.latency_us(entry, winner)
    steps_us = [step_us * latency_us / entry.latency_us for step_us in entry.step_us]
    return {
        "point": number,
        "name": entry.name,
        "latency_us": latency_us,
        "max_relative_error": entry.error,
        "speedup_over_first": gain.ratio,
        "speedup_interval": [gain.low, gain.high],
        "targets": [str(target) for target in entry.plan.targets],
        "partitions": len(entry.plan.partitions),
        "plan": json.loads(encode_plan(model, entry.plan, steps_us or None)),
    }


def write_front(path: Path, folder: Path) -> None:
    """Write an artifact's front as `front.json` and `front.svg`.

    Raises:
        BadInputError: its run had no `pareto`.
    """
    points, report = read_front(path), read_report(path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "front.json").write_text(json.dumps(points, indent=2) + "\n", encoding="utf-8")
    (folder / "front.svg").write_text(
        draw_front(points, report["metric"], report["tolerance"]), encoding="utf-8"
    )


def draw_front(points: Sequence[dict[str, Any]], metric: str, tolerance: float) -> str:
    """The front as SVG: error (logarithmic) to the right, milliseconds upward."""
    errors: list[float] = [max(point["max_relative_error"], 1e-7) for point in points]
    times: list[float] = [point["latency_us"] / 1e3 for point in points]
    low, high = math.floor(math.log10(min(errors))), math.ceil(math.log10(max(*errors, tolerance)))
    top = max(times) * 1.1

    def x(error: float) -> float:
        share = (math.log10(error) - low) / max(high - low, 1)
        return _LEFT + share * (_WIDTH - _LEFT - _MARGIN)

    def y(ms: float) -> float:
        return _HEIGHT - _BOTTOM - ms / top * (_HEIGHT - _BOTTOM - _MARGIN)

    floor, right = _HEIGHT - _BOTTOM, _WIDTH - _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        "<title>Latency against error</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<path d="M{_LEFT} {_MARGIN}V{floor}H{right}" fill="none" stroke="#333"/>',
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 12}" text-anchor="middle">error ({metric})</text>',
        f'<text x="16" y="{floor / 2}" text-anchor="middle" transform="rotate(-90 16 {floor / 2})">'
        "latency, ms</text>",
    ]
    for power in range(low, high + 1):
        at = x(10.0**power)
        parts.append(f'<path d="M{at:.1f} {floor}v5" stroke="#333"/>')
        parts.append(f'<text x="{at:.1f}" y="{floor + 18}" text-anchor="middle">1e{power}</text>')
    for tick in range(5):
        ms = top * tick / 4
        parts.append(f'<text x="{_LEFT - 8}" y="{y(ms) + 4:.1f}" text-anchor="end">{ms:.3g}</text>')
    limit = x(tolerance)
    parts.append(
        f'<path d="M{limit:.1f} {_MARGIN}V{floor}" stroke="#b00" stroke-dasharray="4 3"/>'
        f'<text x="{limit - 4:.1f}" y="{_MARGIN + 10}" text-anchor="end" fill="#b00">tolerance</text>'
    )
    places = [(x(error), y(ms)) for error, ms in zip(errors, times, strict=True)]
    steps = "".join(f"H{px:.1f}V{py:.1f}" for px, py in places[1:])
    start = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
    parts.append(f'<path d="{start}{steps}H{right}" fill="none" stroke="#06c" stroke-width="1.5"/>')
    for point, (px, py) in zip(points, places, strict=True):
        parts.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4" fill="#06c"><title>point {point["point"]}: '
            f"{point['latency_us'] / 1e3:.3g} ms, error {point['max_relative_error']:.2g}</title></circle>"
            f'<text x="{px + 6:.1f}" y="{py - 6:.1f}">{point["point"]}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"

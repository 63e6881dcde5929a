"""What a tuning for throughput or memory found, in words and as a picture; reads a report and needs no runtime."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from collage.objective import gain

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _MARGIN = 640, 400, 70, 50, 24
_LEAST_RADIUS, _MOST_RADIUS = 4.0, 16.0

Setting = Mapping[str, Any]


def measured(report: Mapping[str, Any]) -> list[Setting]:
    """The settings that ran; none where the objective is latency."""
    objective = report.get("objective") or {}
    return [each for each in objective.get("settings", ()) if each.get("throughput_per_s")]


def chosen(report: Mapping[str, Any]) -> Setting | None:
    """The setting that the artifact has; None where the objective is latency, or nothing was measured."""
    return next((each for each in measured(report) if each["chosen"]), None)


def at_once(setting: Setting) -> str:
    """`2 requests at once, 1 thread each`."""
    count, threads = setting["instances"], setting["threads"]
    rows = setting.get("rows", 1)
    if stages := setting.get("stages"):
        return f"a pipeline of {len(stages)} stages, {_each(threads)}"
    if rows > 1:
        return (
            f"{rows} requests a call, {count} call{'' if count == 1 else 's'} at once, {_each(threads)}"
        )
    first = "1 request at a time" if count == 1 else f"{count} requests at once"
    return f"{first}, {_each(threads)}"


def counts(setting: Setting) -> str:
    """`2 × 1 × 8 rows`: instances, threads of each, and requests of a call or stages where there are several."""
    said = f"{setting['instances']} × {setting['threads']}"
    said += f" × {setting['rows']} rows" if setting.get("rows", 1) > 1 else ""
    return said + (f", {len(setting['stages'])} stages" if setting.get("stages") else "")


def _each(threads: int) -> str:
    return f"{threads} thread{'' if threads == 1 else 's'} each"


def rate(setting: Setting) -> str:
    """Requests per second in three digits, or more before the point."""
    per_s = setting["throughput_per_s"]
    return f"{per_s:.0f}" if per_s >= 100 else f"{per_s:.3g}"


def sentence(report: Mapping[str, Any]) -> str | None:
    """The answer of a tuning for throughput or memory; None of one for latency."""
    ours = chosen(report)
    if ours is None:
        return None
    objective = report["objective"]
    said = (
        f"for {objective['name']}, {at_once(ours)}: {rate(ours)} requests/s, median "
        f"{ours['median_us'] / 1e3:.3g} ms, p99 {ours['p99_us'] / 1e3:.3g} ms, {_mib(ours)} MiB"
    )
    compared = _compared(report, ours)
    bound = "" if objective["met"] else "; no setting keeps the bound"
    return f"{said}{compared}{bound}"


def _compared(report: Mapping[str, Any], ours: Setting) -> str:
    """How the answer stands beside the best single target, and beside the fastest plan for one request."""
    others = [each for each in measured(report) if each is not ours]
    singles = [
        each for each in others if each["partitions"] == 1 and each["targets"] != ours["targets"]
    ]
    said = ""
    if singles:
        best = max(singles, key=lambda each: _value(report, each))
        ratio = _value(report, ours) / _value(report, best)
        said += f"; {_unit(report, ratio)} of the best other single target ({best['targets'][0]})"
    return said


def _value(report: Mapping[str, Any], setting: Setting) -> float:
    return gain(
        report["objective"]["name"],
        median_us=setting["median_us"],
        throughput_per_s=setting["throughput_per_s"],
        peak_rss_bytes=setting["peak_rss_bytes"],
    )


def _unit(report: Mapping[str, Any], ratio: float) -> str:
    name = report["objective"]["name"]
    if name == "memory":
        return f"{1 / ratio:.2f} × the memory"
    return f"{ratio:.2f} × {'the throughput' if name == 'throughput' else 'as good by these weights'}"


def _mib(setting: Setting) -> int:
    return int(setting["peak_rss_bytes"]) >> 20


def draw_settings(settings: Sequence[Setting]) -> str:
    """Settings as SVG: the median time of a request to the right, requests per second upward, memory as area.

    Args:
        settings: those that ran; at least one.
    """
    times: list[float] = [each["median_us"] / 1e3 for each in settings]
    rates: list[float] = [each["throughput_per_s"] for each in settings]
    most = max(float(each["peak_rss_bytes"]) for each in settings)
    right, top = max(times) * 1.1, max(rates) * 1.15
    floor, end = _HEIGHT - _BOTTOM, _WIDTH - _MARGIN

    def x(ms: float) -> float:
        return _LEFT + ms / right * (end - _LEFT)

    def y(per_s: float) -> float:
        return floor - per_s / top * (floor - _MARGIN)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        "<title>Throughput against latency; the area of a point is its memory</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<path d="M{_LEFT} {_MARGIN}V{floor}H{end}" fill="none" stroke="#333"/>',
        f'<text x="{(_LEFT + end) / 2}" y="{_HEIGHT - 12}" text-anchor="middle">median, ms</text>',
        f'<text x="16" y="{floor / 2}" text-anchor="middle" transform="rotate(-90 16 {floor / 2})">'
        "requests per second</text>",
    ]
    for tick in range(5):
        ms, per_s = right * tick / 4, top * tick / 4
        parts.append(f'<text x="{x(ms):.1f}" y="{floor + 18}" text-anchor="middle">{ms:.3g}</text>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y(per_s) + 4:.1f}" text-anchor="end">{per_s:.3g}</text>'
        )
    for each, ms, per_s in zip(settings, times, rates, strict=True):
        radius = _LEAST_RADIUS + (_MOST_RADIUS - _LEAST_RADIUS) * math.sqrt(
            each["peak_rss_bytes"] / most
        )
        fill = "#06c" if each["on_front"] else "#bbb"
        ring = ' stroke="#b00" stroke-width="3"' if each["chosen"] else ""
        name = escape(f"{each['name']}, {at_once(each)}")
        parts.append(
            f'<circle cx="{x(ms):.1f}" cy="{y(per_s):.1f}" r="{radius:.1f}" fill="{fill}" '
            f'fill-opacity="0.6"{ring}><title>{name}: {rate(each)} requests/s, {ms:.3g} ms, {_mib(each)} MiB'
            "</title></circle>"
        )
        parts.append(
            f'<text x="{x(ms):.1f}" y="{y(per_s) - radius - 4:.1f}" text-anchor="middle">{counts(each)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"

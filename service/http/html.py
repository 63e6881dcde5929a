"""HTML from templates: everything is escaped, and numbers are formatted the same on every page."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from collage.cost_db.costs.queries import CostFilter


def _ms(latency_us: float | None) -> str:
    if latency_us is None:
        return "–"
    return f"{latency_us / 1000:.2f} ms" if latency_us >= 1000 else f"{latency_us:.1f} µs"


def _moment(at: datetime | None) -> Markup:
    if at is None:
        return Markup("–")
    shown = at.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}">{} UTC</time>').format(at.isoformat(), shown)


def _minute(at: datetime | None) -> str:
    """The value of a field of type `datetime-local`, in UTC."""
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M")


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f} ×"


def _words(text: str) -> Markup:
    """A target in pieces that lines break between."""
    return Markup(" ").join(
        Markup('<span class="word">{}</span>').format(word) for word in text.split()
    )


def _query(wanted: CostFilter, **more: str) -> str:
    given = {name: value for name, value in asdict(wanted).items() if value}
    if "op_types" in given:
        given["op_types"] = " ".join(given["op_types"])
    given.update({name: _minute(given[name]) for name in ("since", "until") if name in given})
    return urlencode({**given, **more})


def _bars(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of the comparison chart: ours, every single target, greedy."""
    bars = [_bar("ours", "ours", report)]
    for baseline in report["baselines"]:
        bars.append(_bar(baseline["target"], "other", baseline))
    if report.get("greedy_latency_us") is not None:
        bars.append(_bar("greedy", "other", {"latency_us": report["greedy_latency_us"]}))
    return bars


def _bar(name: str, kind: str, entry: dict[str, Any]) -> dict[str, Any]:
    latency_us = entry.get("latency_us")
    low, high = entry.get("latency_interval_us") or (None, None)
    return {
        "name": name,
        "kind": kind,
        "latency_us": latency_us,
        "low_us": low,
        "high_us": high if high is not None else latency_us,
        "reason": entry.get("infeasible"),
    }


_environment = Environment(
    loader=PackageLoader("collage.service"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(
    ms=_ms, moment=_moment, minute=_minute, times=_times, query=_query, words=_words, bars=_bars
)


def render(template: str, **facts: Any) -> str:
    """A template of `service/templates` with these facts."""
    return _environment.get_template(template).render(**facts)

"""Rows of the benchmark: one JSON line for each model, how ours compares with the best peer, and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.concurrency.load import Row as Load
from benchmarks.concurrency.load import as_json, best
from benchmarks.support.results import Row
from collage.backends.measurement.ratio import Ratio, compare_builds


def compared(loads: Sequence[Load], clients: int) -> dict[str, Any]:
    """Ours over the best peer, by pairs of the same round, as part of a row."""
    own, other = best(loads, clients, ours=True), best(loads, clients, ours=False)
    pairs = zip(own.rates_per_s, other.rates_per_s, strict=True)
    found = compare_builds([([mine], [theirs]) for mine, theirs in pairs])
    return {
        "clients": clients,
        "ratio": found.ratio,
        "interval": [found.low, found.high],
        "peer": other.contender,
        "ours_per_s": own.throughput_per_s,
        "peer_per_s": other.throughput_per_s,
        "loads": as_json(loads),
    }


def over_models(rows: Sequence[Row]) -> Ratio:
    """The geometric mean of the models' ratios."""
    return compare_builds([([row["ratio"]], [1.0]) for row in rows])


def latest(rows: Sequence[Row]) -> list[Row]:
    """The last row of each model that was measured."""
    return list({row["model"]: row for row in rows if "error" not in row}.values())


def tables(rows: Sequence[Row], settings: Mapping[str, Any]) -> str:
    """Each model, and all together."""
    lines = [
        f"{settings['hardware']}; `{'`, `'.join(settings['targets'])}`; limit {settings['time_limit_s']:g} s, "
        f"{settings['rounds']} rounds of {settings['seconds']:g} s.",
        "",
        "| model | chosen | clients | ours, requests/s | best peer | its requests/s | ratio | 95 % interval |",
        "|---|---|--:|--:|---|--:|--:|---|",
    ]
    for row in rows:
        low, high = row["interval"]
        lines.append(
            f"| {row['model']} | {row['chosen']} | {row['clients']} | {row['ours_per_s']:.1f} | {row['peer']} "
            f"| {row['peer_per_s']:.1f} | {row['ratio']:.3f} | {low:.3f} to {high:.3f} |"
        )
    if rows:
        mean, least = over_models(rows), min(row["ratio"] for row in rows)
        interval = f", 95 % interval {mean.low:.3f} to {mean.high:.3f}" if len(rows) > 1 else ""
        behind = [row["model"] for row in rows if row["interval"][1] < 1.0]
        lines += [
            "",
            f"Geometric mean over {len(rows)} models {mean.ratio:.3f}{interval}; least {least:.3f}. "
            f"Slower than the best peer beyond noise: {', '.join(behind) or 'none'}.",
        ]
    return "\n".join(lines) + "\n"

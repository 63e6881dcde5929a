"""Rows of the benchmark: one JSON line for each tuning, and the tables that they give."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.disturbed.load import KINDS
from benchmarks.support.results import Row, geomean

# A returned plan below this share of the best single target's speed is a wrong answer.
LEAST = 0.97


def tables(rows: Sequence[Row], settings: Mapping[str, Any]) -> str:
    """By kind how often the plan was too slow, its speed and the seconds; then each model alone."""
    done = [row for row in rows if "speedup" in row]
    quiet = _by_model([row for row in done if row["kind"] == "none"])
    lines = [
        f"{settings['hardware']}; `{'`, `'.join(settings['targets'])}`; limit {settings['time_limit_s']:g} s. "
        "Speeds are those of the returned plan over the best single target, both timed in quiet.",
        "",
        f"| other work | tunings | below {LEAST} | geomean | over quiet tuning's | median seconds | most "
        "| ended early | seconds saved by that | failed |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, chosen in KINDS.items():
        mine = [row for row in done if row["kind"] == kind]
        failed = sum(row["kind"] == kind and "error" in row for row in rows)
        if not mine:
            continue
        below = sum(row["speedup"] < LEAST for row in mine)
        models = _by_model(mine)
        over = [geomean(models[m]) / geomean(quiet[m]) for m in models if m in quiet]
        seconds = [row["seconds"] for row in mine]
        saved = [settings["time_limit_s"] - row["seconds"] for row in mine if _ended_early(row)]
        lines.append(
            f"| {chosen.text} | {len(mine)} | {below} ({below / len(mine):.0%}) "
            f"| {geomean([row['speedup'] for row in mine]):.3f} | {f'{geomean(over):.3f}' if over else ''} "
            f"| {statistics.median(seconds):.0f} | {max(seconds):.0f} "
            f"| {len(saved)} | {f'{statistics.median(saved):.0f}' if saved else ''} | {failed} |"
        )
    lines += ["", f"| model | {' | '.join(KINDS)} |", "|---|" + "---|" * len(KINDS)]
    for model in dict.fromkeys(row["model"] for row in done):
        cells = [
            _cell([r for r in done if r["model"] == model and r["kind"] == kind]) for kind in KINDS
        ]
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _ended_early(row: Row) -> bool:
    return any(warning.startswith("ended early") for warning in row.get("warnings", ()))


def _by_model(rows: Sequence[Row]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["model"], []).append(row["speedup"])
    return found


def _cell(rows: Sequence[Row]) -> str:
    """Geomean and least speed."""
    if not rows:
        return ""
    speeds = [row["speedup"] for row in rows]
    return f"{geomean(speeds):.3f} (least {min(speeds):.3f})"

"""The table of the results of `benchmarks.patterns`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.support.interleave import compare

TARGETS = ("onnxruntime", "openvino", "mnn", "ncnn")


def advantage(places: Sequence[Mapping[str, Any]], target: str) -> tuple[list[float], int]:
    """Per place the fastest other target's time over this one's, and where that is beyond noise."""
    ratios, wins = [], 0
    for place in places:
        timed = {t: s for t, s in place.items() if not isinstance(s, str)}
        others = [t for t in timed if t != target]
        if target not in timed or not others:
            continue
        best = min(others, key=lambda other: statistics.median(timed[other]))
        ratio = compare(timed[best], timed[target])
        ratios.append(ratio.ratio)
        wins += ratio.low > 1
    return ratios, wins


def table(results: Mapping[str, Any], naming: Mapping[str, Sequence[str]]) -> str:
    """Markdown: a row for each pattern, a column for each target."""
    lines = ["| pattern | timed in | " + " | ".join(TARGETS) + " |", "|---|---" + "|--:" * 4 + "|"]
    for name, result in sorted(results.items()):
        cells = [name, ", ".join(dict.fromkeys(row["model"] for row in result["rows"])) or "–"]
        for target in TARGETS:
            ratios, wins = advantage(result["samples"], target)
            cell = f"{statistics.median(ratios):.2f} ({wins} of {len(ratios)})" if ratios else "–"
            if ratios and wins * 2 > len(ratios):
                cell = f"**{cell}**"
            cells.append(cell if target in naming.get(name, ()) or not ratios else f"[{cell}]")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"

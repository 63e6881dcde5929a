"""The atlas as one HTML page that needs no server: no links outside, and a policy that allows none."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_STYLE = """
body { font: 14px sans-serif; margin: 2em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { padding: 3px 10px; border-bottom: 1px solid #ddd; text-align: left; }
td.number, th.number { text-align: right; }
tr.unsure { color: #767676; }
input { font: inherit; padding: 4px; width: 24em; }
"""
_SCRIPT = """
const field = document.getElementById("search");
const rows = [...document.querySelectorAll("tbody tr")];
const texts = rows.map(row => row.textContent.toLowerCase());
field.addEventListener("input", () => {
  const words = field.value.toLowerCase().split(/\\s+/).filter(Boolean);
  rows.forEach((row, i) => { row.hidden = !words.every(word => texts[i].includes(word)); });
});
"""


def atlas_page(atlas: Mapping[str, Any]) -> str:
    """The page of what `read_atlas` found."""
    policy = (
        f"default-src 'none'; style-src '{_digest(_STYLE)}'; script-src '{_digest(_SCRIPT)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>Atlas of runtimes</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
            "<h1>Who is fast at what</h1>",
            "<p>Times over those of the fastest target on the same regions: 1 is the fastest. Gray rows are not sure: "
            "few regions, or regions that differ.</p>",
            '<label>Search <input id="search" type="search" placeholder="conv 3x3 openvino"></label>',
            "<h2>More than twice as slow</h2>",
            _table(
                ("operators", "shapes", "type", "fast", "slow", "factor", "regions", "machine"),
                [
                    (
                        row["is_sure"],
                        [row["kind"], row["shape_class"], row["dtype"], row["fast"], row["slow"]],
                        [f"{row['factor']:.2f}", row["regions"]],
                        row["machine"],
                    )
                    for row in atlas["differences"]
                ],
            ),
            "<h2>All classes</h2>",
            _table(
                (
                    *("operators", "shapes", "type", "target"),
                    *("times the best", "95 % interval", "fastest in", "regions", "models", "machine"),
                ),
                [
                    (
                        row["is_sure"],
                        [row["kind"], row["shape_class"], row["dtype"], row["target"]],
                        [
                            f"{row['times_best']:.2f}",
                            interval_text(row["interval"]),
                            f"{row['fastest_in']:.0%}",
                            row["regions"],
                            row["models"],
                        ],
                        row["machine"],
                    )
                    for row in atlas["rows"]
                ],
            ),
            f"<script>{_SCRIPT}</script>\n</body>\n</html>\n",
        ]
    )


def interval_text(interval: Sequence[float] | None) -> str:
    """`1.02 to 1.31`; empty where it is not known."""
    return "" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"


def _table(heads: Sequence[str], rows: Sequence[tuple[bool, Sequence[Any], Sequence[Any], str]]) -> str:
    lines = ["<table>", f"<thead><tr>{''.join(f'<th>{h}</th>' for h in heads)}</tr></thead>", "<tbody>"]
    for sure, texts, numbers, last in rows:
        cells = [f"<td>{escape(str(text))}</td>" for text in texts]
        cells += [f'<td class="number">{escape(str(number))}</td>' for number in numbers]
        cells.append(f"<td>{escape(last)}</td>")
        mark = "" if sure else ' class="unsure"'
        lines.append(f"<tr{mark}>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</tbody>", "</table>"])


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

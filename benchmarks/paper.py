"""Our plans of Collage's five models beside the paper's.

    python -m benchmarks.paper --results benchmarks/results/exact-xeon.json --report docs/results/paper.md

It measures nothing: `python -m benchmarks.compare` made the results. The paper's ratios are of another
CPU, other runtimes and other builds of the models. Two things can be compared: whether the search finds
a speedup over the best single runtime, and whether it is ever slower.

Source: Jeon et al., "Collage: Seamless Integration of Deep Learning Backends with Automatic Placement",
PACT 2022; its ratios are computed from the data that the authors published with it (CPU, batch 1,
two-level search).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.support.results import geomean, write_table

# Model of the paper, ours, and the latency of its best single baseline over that of its two-level search.
_MODELS = (
    ("BERT", "bert_base", 0.88),
    ("DCGAN", "dcgan", 0.89),
    ("NASNet-A", "nasnet_mobile", 1.20),
    ("ResNet50-3D", "r3d_18", 0.84),
    ("ResNeXt50", "resnext50", 1.14),
)


def main() -> None:
    """Print the table, and write it between its marks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/exact-xeon.json"))
    parser.add_argument("--report", type=Path, default=None)
    chosen = parser.parse_args()
    rows = {row["model"]: row for row in json.loads(chosen.results.read_text(encoding="utf-8"))["rows"]}
    table = _table(rows)
    print(table)
    if chosen.report is not None:
        write_table(chosen.report, "paper", table)


def _table(rows: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| model | here | plan | best single / ours | best single / Collage's, in the paper |",
        "|---|---|---|---|---|",
    ]
    ours = []
    for name, here, paper in _MODELS:
        row = rows.get(here, {})
        if not row.get("speedup"):
            lines.append(f"| {name} | {here} | {row.get('error', 'not measured')} | | {paper:.2f} |")
            continue
        low, high = row["interval"]
        plan = ", ".join(f"{target} ({count})" for target, count in row["partitions"][:4])
        ours.append(row["speedup"])
        lines.append(
            f"| {name} | {here} | {plan} | {row['speedup']:.3f} [{low:.3f}, {high:.3f}] | {paper:.2f} |"
        )
    theirs = geomean([paper for _, _, paper in _MODELS])
    if len(ours) == len(_MODELS):
        lines.append(f"| geomean | | | {geomean(ours):.3f} | {theirs:.2f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

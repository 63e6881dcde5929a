"""How much longer a tuning for five sizes takes than one for a single size.

    python -m benchmarks.shapes.tuning_time [MODEL ...] [--repeats 1] [--time-limit SECONDS] [--output FILE]

Both tune the same model on the same runtimes, each from an empty database: once at the largest size alone, which is where
the search for all sizes runs too, once for a list of five sizes. Which comes first changes with the repetition; medians are
compared. Goal: at most 2.5 times as long, without a time limit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import collage
from benchmarks.shapes.cases import CASES, Case, check_names
from benchmarks.support.results import geomean, here

_TARGETS = ("onnxruntime", "openvino", "mnn")
_MODELS = ("encoder", "ppocr_rec", "yolo_v8n")
_COUNT = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"of {', '.join(CASES)} [{' '.join(_MODELS)}]"
    )
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--time-limit", type=float, help="seconds of each tuning [none]")
    parser.add_argument("--output", type=Path, help="where the rows go as JSON")
    given = parser.parse_args()
    check_names(parser, given.models)
    rows = {}
    for name in given.models or _MODELS:
        rows[name] = measure(CASES[name], given.repeats, given.time_limit)
        print(name, json.dumps(rows[name]), flush=True)
    print(table(rows))
    if given.output is not None:
        found = {"machine": here(), "repeats": given.repeats, "rows": rows}
        given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def five_sizes(case: Case) -> list[int]:
    """Both ends of a case, and sizes between them at equal ratios, in its steps."""
    ratio = (case.high / case.low) ** (1 / (_COUNT - 1))
    steps = [round((case.low * ratio**i - case.low) / case.step) for i in range(_COUNT)]
    return [case.low + case.step * count for count in steps]


def measure(case: Case, repeats: int, limit_s: float | None) -> dict[str, Any]:
    """The seconds of both tunings by repetition, and the longest stages of the last ones."""
    sizes = five_sizes(case)
    texts = {"one": str(sizes[-1]), "five": ",".join(map(str, sizes))}
    seconds: dict[str, list[float]] = {kind: [] for kind in texts}
    stages: dict[str, Any] = {}
    for number in range(repeats):
        for kind in sorted(texts, reverse=number % 2 == 0):
            with tempfile.TemporaryDirectory(prefix="benchmark-tuning-time-") as work:
                begin_s = time.perf_counter()
                stages[kind] = _tuned(case, Path(work), texts[kind], limit_s)
                seconds[kind].append(round(time.perf_counter() - begin_s, 1))
    return {"sizes": sizes, "seconds": seconds, "ratio": round(_ratio(seconds), 3), "stages": stages}


def _ratio(seconds: Mapping[str, list[float]]) -> float:
    return statistics.median(seconds["five"]) / statistics.median(seconds["one"])


def _tuned(case: Case, folder: Path, sizes: str, limit_s: float | None) -> dict[str, float]:
    """Tune from nothing; the seconds of each stage."""
    one = int(sizes) if sizes.isdecimal() else None
    artifact = collage.tune(
        case.make(folder),
        _TARGETS,
        output=folder / "tuned.onnx",
        database=f"sqlite:///{folder / 'costs.db'}",
        inputs=case.samples(folder, one),
        dims={**case.fixed, case.free: sizes},
        time_limit_s=limit_s,
    )
    return dict(artifact.report["seconds"])


def table(rows: Mapping[str, Any]) -> str:
    """The rows for people."""
    lines = ["| model | sizes | one size, s | five sizes, s | ratio |", "|---" * 5 + "|"]
    for name, row in rows.items():
        one, five = (statistics.median(row["seconds"][kind]) for kind in ("one", "five"))
        sizes = ", ".join(map(str, row["sizes"]))
        lines.append(f"| {name} | {sizes} | {one:.0f} | {five:.0f} | {row['ratio']:.2f} |")
    mean = geomean([row["ratio"] for row in rows.values()])
    return "\n".join([*lines, f"geometric mean: {mean:.2f}"])


if __name__ == "__main__":
    main()

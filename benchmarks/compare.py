"""The plan found against every single target, on many models.

    python -m benchmarks.compare --models light_resnet50 my_own.onnx:batch=1 --targets onnxruntime openvino mnn

Each model is tuned from an empty database (with `--known` once more, with its costs known). Its
artifact is then timed against every single target, interleaved in fresh processes (`collage bench`). It
is timed once more after the next model, since other load on the machine changes ratios for minutes.
Printed and written are the best single target's and ONNX Runtime's latencies over ours, with 95 %
intervals.

Models that the output file has are not measured again, unless they failed. A file of other targets,
another tolerance or another machine is refused.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import collage
from benchmarks.support.models import benchmark_model, name_or_file, names
from benchmarks.support.results import geomean, here, measured_before, write_inputs, write_table
from collage.backends.contract import Available
from collage.backends.registry import backends
from collage.partitioner.errors import CollageError
from collage.report.bench import Bench

_DEFAULT_TARGETS = ("onnxruntime", "openvino", "mnn")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", type=name_or_file, default=list(names()), metavar="NAME or FILE"
    )
    parser.add_argument("--targets", nargs="+", default=None)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--time-limit", type=float, default=None)
    parser.add_argument("--known", action="store_true", help="also tune again with that database")
    parser.add_argument("--readme", type=Path, default=None, help="write the table between its marks")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/compare.json"))
    chosen = parser.parse_args()
    targets = chosen.targets or [
        name for name in _DEFAULT_TARGETS if isinstance(backends()[name].probe(), Available)
    ]
    settings = {"targets": targets, "tolerance": chosen.tolerance, "hardware": here()}
    measured = {row["model"]: row for row in measured_before(chosen.output, settings)}

    def keep(row: dict[str, Any]) -> None:
        measured[row["model"]] = row
        print(_line(row), flush=True)
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        written = settings | {"rows": in_order(measured)}
        chosen.output.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")

    waiting: Iterator[dict[str, Any]] = iter(())
    for name in dict.fromkeys(chosen.models):
        if name in measured and "error" not in measured[name]:
            print(_line(measured[name]), flush=True)
            continue
        timed = _measured(name, targets, chosen.tolerance, chosen.time_limit, chosen.known)
        keep(next(timed))
        for row in waiting:
            keep(row)
        waiting = timed
    for row in waiting:
        keep(row)
    rows = in_order(measured)
    _print_summary(rows)
    if chosen.readme is not None:
        write_table(chosen.readme, "exact", _table(rows, settings))


def in_order(measured: Mapping[str, Any]) -> list[Any]:
    """Rows by model, those of files last."""
    known = [model for model in names() if model in measured]
    return [measured[model] for model in (*known, *(m for m in measured if m not in known))]


def _measured(
    name: str, targets: list[str], tolerance: float, time_limit_s: float | None, twice: bool
) -> Iterator[dict[str, Any]]:
    """A model's row after it was tuned and timed, and its row after it was timed once more; or its error."""
    model = benchmark_model(name)
    with tempfile.TemporaryDirectory(prefix="collage-compare-") as folder:
        work = Path(folder)
        database = f"sqlite:///{work / 'costs.db'}"
        arguments: dict[str, Any] = {
            "database": database,
            "dims": dict(model.dims),
            "tolerance": tolerance,
            "time_limit_s": time_limit_s,
        }
        begin = time.monotonic()
        try:
            arguments["inputs"] = write_inputs(name, model.path, dict(model.dims), work)
            artifact = collage.tune(model.path, targets, output=work / "a.onnx", **arguments)
        except Exception as error:  # the other models' rows are not lost for a fault of ours
            kind = "" if isinstance(error, CollageError) else f"{type(error).__name__}: "
            yield {"model": name, "error": f"{kind}{error}"}
            return
        report = artifact.report
        row = {
            "model": name,
            "seconds_cold": time.monotonic() - begin,
            "measured": report["candidates"]["measured"],
            "unique": report["candidates"]["unique"],
            "measured_again": None,
            "seconds_known": None,
            "partitions": [[part["target"], len(part["nodes"])] for part in report["partitions"]],
            "tuned_speedup": report["speedup_over_best_single"],
            "tuned_interval": report["speedup_interval"],
            "best_mix": _best_mix(report),
            "max_relative_error": report["max_relative_error"],
        }
        if twice:
            begin = time.monotonic()
            known = collage.tune(model.path, targets, output=work / "b.onnx", **arguments).report
            row["measured_again"] = known["candidates"]["measured"]
            row["seconds_known"] = time.monotonic() - begin
        (work / "bench").mkdir()
        beside = Bench(artifact.path, work / "bench", source=model.path)
        for _ in range(2):
            beside.time()
            found = beside.found()
            yield {
                **row,
                "baselines": found["baselines"],
                "latency_us": found["latency_us"],
                "speedup": found["speedup_over_best_single"],
                "interval": found["speedup_interval"],
                "warnings": found["warnings"],
            }


def _best_mix(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fastest plan of more than one target that was timed: how far from winning it was."""
    mixed = [
        {name: plan[name] for name in ("targets", "partitions", "speedup_over_best_single")}
        for plan in report["plans"]
        if len(plan["targets"]) > 1 and "speedup_over_best_single" in plan
    ]
    return max(mixed, key=lambda plan: plan["speedup_over_best_single"], default=None)


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['model']}: {row['error']}"
    low, high = row["interval"] or (math.nan, math.nan)
    plan = " + ".join(f"{target}×{count}" for target, count in row["partitions"][:6])
    known = "" if row["seconds_known"] is None else f"{row['seconds_known']:.1f} s known, "
    return (
        f"{row['model']}: {row['speedup'] or math.nan:.3f} [{low:.3f}, {high:.3f}] over the best single, "
        f"{row['seconds_cold']:.0f} s cold, {known}"
        f"{row['measured']} of {row['unique']} costs measured, error {row['max_relative_error']:.1e}: {plan}"
    )


def _print_summary(rows: list[dict[str, Any]]) -> None:
    gains = [row["speedup"] for row in rows if row.get("speedup")]
    over_ort = [over for row in rows if (over := _over_onnxruntime(row))]
    if gains:
        print(
            f"best single / ours: geomean {geomean(gains):.3f}, least {min(gains):.3f}, {len(gains)} models"
        )
    if over_ort:
        print(f"onnxruntime / ours: geomean {geomean(over_ort):.3f}")


def _table(rows: list[dict[str, Any]], settings: Mapping[str, Any]) -> str:
    command = (
        f"python -m benchmarks.compare --tolerance {settings['tolerance']:g} --targets "
        + " ".join(f"'{target}'" if " " in target else target for target in settings["targets"])
    )
    lines = [
        f"Measured by `{command}`, batch 1, {settings['hardware']}; ratios of medians,",
        "interleaved in fresh processes, with 95 % intervals. Greater than 1 means that ours is faster.",
        "",
        "| model | partitions | best single / ours | onnxruntime / ours | best mix | largest error |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.get("speedup") is None:
            lines.append(f"| {row['model']} | | {row.get('error', 'no single target runs it')} | | | |")
            continue
        over = _over_onnxruntime(row)
        low, high = row["interval"]
        plan = ", ".join(f"{target} ({count})" for target, count in row["partitions"][:4])
        more = f" and {len(row['partitions']) - 4} more" if len(row["partitions"]) > 4 else ""
        lines.append(
            f"| {row['model']} | {plan}{more} | {row['speedup']:.3f} [{low:.3f}, {high:.3f}] "
            f"| {'' if over is None else f'{over:.2f}'} | {_said(row.get('best_mix'))} "
            f"| {row['max_relative_error']:.1e} |"
        )
    gains = [row["speedup"] for row in rows if row.get("speedup")]
    over_ort = [over for row in rows if (over := _over_onnxruntime(row))]
    if len(gains) > 1:
        said = f"{geomean(over_ort):.2f}" if over_ort else ""
        lines.append(f"| geomean of {len(gains)} | | {geomean(gains):.3f} | {said} | | |")
    return "\n".join(lines) + "\n"


def _over_onnxruntime(row: Mapping[str, Any]) -> float | None:
    """ONNX Runtime's latency over ours, where both ran."""
    ort = next((b for b in row.get("baselines", ()) if b["target"] == "onnxruntime"), {})
    ran = ort.get("latency_us") and row.get("latency_us")
    return ort["latency_us"] / row["latency_us"] if ran else None


def _said(mix: dict[str, Any] | None) -> str:
    return "" if mix is None else f"{mix['speedup_over_best_single']:.2f} ({mix['partitions']} parts)"


if __name__ == "__main__":
    sys.exit(main())

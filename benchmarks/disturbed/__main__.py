"""Tuning beside other work: is the returned plan still right when it is timed in quiet?

    python -m benchmarks.disturbed

Each model is tuned from an empty database beside each kind of other work (`benchmarks.disturbed.load`), several times.
The other work then ends, and the returned plan is timed beside every single target, interleaved in fresh processes
(`collage bench`). Equal plans of a model are timed once. Nothing else may run on the machine.

Tunings that the output file has are kept, unless they failed: it has one JSON line for each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

import collage
from benchmarks.disturbed.load import KINDS, disturbed
from benchmarks.disturbed.rows import tables
from benchmarks.support.models import BenchmarkModel, benchmark_model, default_cache
from benchmarks.support.results import append_row, here, read_rows, write_inputs, write_table
from benchmarks.support.zoo.detection import yolo_v8n
from collage.backends.registry import installed
from collage.report.bench import Bench
from tests.models import seeded_input
from tests.seeded_weights import calibrate

_YOLO = "yolo_v8n"
_MODELS = (_YOLO, "vit_small", "ppocr_rec", "silero", "mobilenet_v2")
# Part of the file's name: change it when the model is built in another way.
_EDITION = 1


def main() -> None:
    """Tune what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=_MODELS, default=list(_MODELS))
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--tunings", type=int, default=5, help="of each model beside each kind")
    parser.add_argument("--time-limit", type=float, default=60.0, help="of one tuning")
    parser.add_argument("--processes", type=int, default=4, help="fresh ones in which a plan is timed")
    parser.add_argument("--targets", nargs="+", default=None)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/disturbed.jsonl"))
    parser.add_argument("--report", type=Path, default=None, help="write the tables between its marks")
    chosen = parser.parse_args()
    targets = chosen.targets or installed()
    settings = {"hardware": here(), "targets": targets, "time_limit_s": chosen.time_limit}
    rows = read_rows(chosen.output, settings)
    # Models and kinds take turns, so that no kind has all its tunings at one time of the day.
    for number in range(chosen.tunings):
        for name in chosen.models:
            for kind in chosen.kinds:
                place = {"model": name, "kind": kind, "number": number}
                if any(place.items() <= row.items() and "error" not in row for row in rows):
                    continue
                row = {**place, **settings, **_tuned(name, kind, settings, rows, chosen.processes)}
                rows = [*rows, row]
                append_row(chosen.output, row)
                print(_line(row), flush=True)
    table = tables(_latest(rows), settings)
    print(table)
    if chosen.report is not None:
        write_table(chosen.report, "disturbed", table)


def _model(name: str) -> BenchmarkModel:
    if name != _YOLO:
        return benchmark_model(name)
    path = default_cache() / f"{_YOLO}-{_EDITION}.onnx"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        proto = yolo_v8n()
        shape = tuple(dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim)
        calibrate(proto, {proto.graph.input[0].name: seeded_input(shape, "float32", 99)})
        onnx.save(proto, path)
    return BenchmarkModel(name, path, {})


def _tuned(
    name: str,
    kind: str,
    settings: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    processes: int,
) -> dict[str, Any]:
    """Tune beside other work, then time the plan in quiet, unless an earlier row has the same plan."""
    model = _model(name)
    with tempfile.TemporaryDirectory(prefix="collage-disturbed-") as folder:
        work = Path(folder)
        inputs = write_inputs(name, model.path, dict(model.dims), work)
        begin = time.monotonic()
        try:
            with disturbed(kind):
                artifact = collage.tune(
                    model.path,
                    settings["targets"],
                    output=work / "tuned.onnx",
                    database=f"sqlite:///{work / 'costs.db'}",
                    dims=dict(model.dims),
                    inputs=inputs,
                    time_limit_s=settings["time_limit_s"],
                )
        except Exception as error:  # the other tunings' rows are not lost for a fault of ours
            return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - begin}
        found: dict[str, Any] = {
            "seconds": time.monotonic() - begin,
            "claimed": artifact.report["speedup_over_best_single"],
            "claimed_interval": artifact.report["speedup_interval"],
            "partitions": [[p["target"], len(p["nodes"])] for p in artifact.report["partitions"]],
            "plan": _digest(artifact.plan),
            "warnings": list(artifact.report["warnings"]),
        }
        for row in rows:
            if row["model"] == name and row.get("plan") == found["plan"] and "speedup" in row:
                return {**found, **{key: row[key] for key in ("speedup", "interval", "baselines")}}
        (work / "bench").mkdir()
        bench = Bench(artifact.path, work / "bench", source=model.path)
        bench.time(processes)
        timed = bench.found()
    if timed["speedup_over_best_single"] is None:
        return {**found, "error": f"the plan could not be timed in quiet: {timed['infeasible']}"}
    return {
        **found,
        "speedup": timed["speedup_over_best_single"],
        "interval": timed["speedup_interval"],
        "baselines": timed["baselines"],
    }


def _digest(plan: Mapping[str, Any]) -> str:
    """Equal for plans of equal partitions, whatever was measured of them."""
    parts = [[part["target"], part["nodes"]] for part in plan["partitions"]]
    return hashlib.sha256(json.dumps([parts, plan.get("lanes")]).encode()).hexdigest()[:16]


def _latest(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """One row for each tuning: the last one."""
    return list({(row["model"], row["kind"], row["number"]): row for row in rows}.values())


def _line(row: Mapping[str, Any]) -> str:
    head = f"{row['model']}, {row['kind']}, {row['number']}: {row['seconds']:.0f} s"
    if "error" in row:
        return f"{head}, {row['error']}"
    low, high = row["interval"]
    plan = ", ".join(f"{target} ({count})" for target, count in row["partitions"][:4])
    return f"{head}, {row['speedup']:.3f} [{low:.3f}, {high:.3f}], claimed {row['claimed']:.3f}: {plan}"


if __name__ == "__main__":
    main()

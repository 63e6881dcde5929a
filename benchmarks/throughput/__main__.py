"""Models tuned for throughput beside ONNX Runtime's and OpenVINO's own ways to serve them.

    python -m benchmarks.throughput [MODEL ...] [-t TARGET ...] [--time-limit 120] [--rounds 5] [--report FILE]

Goal: at least equal on each model within noise, and a geometric mean of 1.10. The load has twice as many clients as there
are cores, or as many as fill the calls that were tuned for. The peers are one ONNX Runtime session, several that share
out the cores, one that joins requests to batches, and OpenVINO's THROUGHPUT hint. Each contender runs in processes of its
own, in turn. A ratio is that of the rounds, to the peer that is best in the median. A model takes about five minutes.

Models that the output file has are kept, unless they failed: it has one JSON line for each.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import collage
from benchmarks.concurrency.__main__ import peers
from benchmarks.concurrency.contenders import Contender
from benchmarks.concurrency.load import measure, table
from benchmarks.support.models import benchmark_model, name_or_file, seeded_inputs
from benchmarks.support.results import append_row, here, read_rows, write_table
from benchmarks.throughput.tables import compared, latest, tables
from collage.backends.machine.process_policy import default_threads
from collage.objectives.goal import CLIENTS_PER_CORE
from collage.objectives.more_rows import with_rows
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize

_MODELS = (
    *("ppocr_cls", "ppocr_rec", "light_resnet50", "light_densenet121", "light_vgg19"),
    *("light_squeezenet", "light_shufflenet", "light_inception_v1", "mobilenet_v2", "vit_small"),
)
_TARGETS = ("onnxruntime", "openvino", "mnn", "ncnn")
_BATCHES = (4, 8)


def main() -> None:
    """Tune and measure what is missing, and print a table of all models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", type=name_or_file, default=list(_MODELS))
    parser.add_argument("-t", "--target", action="append", default=[])
    parser.add_argument("--time-limit", type=float, default=120.0, help="of one tuning")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one load")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/throughput.jsonl"))
    parser.add_argument("--report", type=Path, default=None, help="write the table between its marks")
    asked = parser.parse_args()
    settings = {
        "hardware": here(),
        "targets": asked.target or list(_TARGETS),
        "time_limit_s": asked.time_limit,
        "seconds": asked.seconds,
        "rounds": asked.rounds,
    }
    rows = read_rows(asked.output, settings)
    for name in asked.models:
        if any(row["model"] == name and "error" not in row for row in rows):
            continue
        begin = time.monotonic()
        try:
            found = _measured(name, settings)
        except Exception as error:  # the other models' rows are not lost for a fault of one
            found = {"error": f"{type(error).__name__}: {error}"}
            print(f"{name}: {found['error']}", flush=True)
        row = {"model": name, **settings, **found, "took_s": time.monotonic() - begin}
        rows = [*rows, row]
        append_row(asked.output, row)
    made = tables(latest(rows), settings)
    print(f"\n{made}")
    if asked.report is not None:
        write_table(asked.report, "throughput", made)


def _measured(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Tune a model, and measure it beside its peers."""
    cores = default_threads()
    with tempfile.TemporaryDirectory(prefix="collage-throughput-") as text:
        folder = Path(text)
        built = benchmark_model(name)
        normalize(built.path, folder, built.dims)
        model = Model.open(folder / "model.onnx")
        artifact = collage.tune(
            built.path,
            settings["targets"],
            output=folder / "tuned.onnx",
            dims=built.dims,
            objective="throughput",
            time_limit_s=settings["time_limit_s"],
            # A tuning that is known from before is not measured again.
            database=f"sqlite:///{folder / 'costs.db'}",
        )
        tuned = artifact.plan.get("instances", {})
        # So many that calls of several requests can be full.
        clients = max(CLIENTS_PER_CORE * cores, tuned.get("count", 1) * tuned.get("rows", 1))
        ours = Contender("ours, tuned for throughput", "ours", artifact.path)
        others = [*peers(folder / "model.onnx", cores), *_batched(model, clients, cores, folder)]
        loads = measure(
            [ours, *others],
            seeded_inputs(name, model),
            [clients],
            settings["seconds"],
            settings["rounds"],
        )
    found = compared(loads, clients)
    low, high = found["interval"]
    print(f"\n{name}\n{table(loads)}")
    print(f"ours over {found['peer']}: {found['ratio']:.3f} [{low:.3f}, {high:.3f}]", flush=True)
    return {"chosen": _chosen(artifact.report["objective"]), **found}


def _batched(model: Model, clients: int, cores: int, folder: Path) -> Iterator[Contender]:
    """One session of all cores whose calls compute several requests, where the model's rows allow it."""
    for rows in _BATCHES:
        if rows > clients:
            continue
        made = with_rows(model, rows, folder / f"rows-{rows}", None)
        if isinstance(made, str):
            print(f"calls of {rows} requests are left out: {made}")
            continue
        path = made.model.path
        yield Contender(f"onnxruntime, calls of {rows}", "onnxruntime", path, 1, cores, rows)


def _chosen(objective: Mapping[str, Any]) -> str:
    """The setting of the artifact in short."""
    for setting in objective["settings"]:
        if setting.get("chosen"):
            targets = ", ".join(dict.fromkeys(setting["targets"]))
            calls = f", {setting['rows']} a call" if setting["rows"] > 1 else ""
            lines = f", pipeline of {len(setting['stages'])}" if setting["stages"] else ""
            return f"{targets}: {setting['instances']} × {setting['threads']}{calls}{lines}"
    return "as for latency"


if __name__ == "__main__":
    main()

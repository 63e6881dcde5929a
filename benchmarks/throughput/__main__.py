"""Models tuned for throughput beside ONNX Runtime's and OpenVINO's own ways to serve them.

    python -m benchmarks.throughput [MODEL ...] [-t TARGET ...] [--time-limit 120] [--rounds 3] [--json FILE]

Goal: at least equal on each model within noise. The load has twice as many clients as there are cores, or as many as fill
the calls that were tuned for. Each contender runs in processes of its own, in turn.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import collage
from benchmarks.concurrency.__main__ import peers
from benchmarks.concurrency.contenders import Contender
from benchmarks.concurrency.load import as_json, best, measure, table
from benchmarks.support.models import benchmark_model, name_or_file, seeded_inputs
from benchmarks.support.results import geomean, here
from collage.backends.machine.process_policy import default_threads
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize

_MODELS = ("ppocr_cls", "ppocr_rec", "light_resnet50", "light_densenet121", "light_vgg19")
_TARGETS = ("onnxruntime", "openvino", "mnn", "ncnn")


def main() -> None:
    """Tune, measure, print a table for each model, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=name_or_file, default=list(_MODELS))
    parser.add_argument("-t", "--target", action="append", default=[])
    parser.add_argument("--time-limit", type=float, default=120.0)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    asked = parser.parse_args()
    cores = default_threads()
    print(here())
    found, ratios = {}, []
    for name in asked.models:
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            built = benchmark_model(name)
            normalize(built.path, folder, built.dims)
            artifact = collage.tune(
                built.path,
                asked.target or list(_TARGETS),
                output=folder / "tuned.onnx",
                dims=built.dims,
                objective="throughput",
                time_limit_s=asked.time_limit,
            )
            tuned = artifact.plan.get("instances", {})
            # So many that calls of several requests can be full.
            clients = max(2 * cores, tuned.get("count", 1) * tuned.get("rows", 1))
            ours = Contender("ours, tuned for throughput", "ours", artifact.path)
            feed = seeded_inputs(name, Model.open(folder / "model.onnx"))
            contenders = [ours, *peers(folder / "model.onnx", cores)]
            rows = measure(contenders, feed, [clients], asked.seconds, asked.rounds)
        own, other = best(rows, clients, ours=True), best(rows, clients, ours=False)
        ratios.append(own.throughput_per_s / other.throughput_per_s)
        print(f"\n{name}\n{table(rows)}")
        print(f"ours over {other.contender}: {ratios[-1]:.3f} ×")
        found[name] = {
            "rows": as_json(rows),
            "ratio": ratios[-1],
            "objective": artifact.report["objective"],
        }
    print(f"\ngeometric mean: {geomean(ratios):.3f} ×, least {min(ratios):.3f} ×")
    if asked.json is not None:
        asked.json.write_text(
            json.dumps({"machine": here(), "rows": found}, indent=1), encoding="utf-8"
        )


if __name__ == "__main__":
    main()

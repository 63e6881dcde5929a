"""Several clients at once: our sessions beside ONNX Runtime's and OpenVINO's own ways.

    python -m benchmarks.concurrency [MODEL ...] [--clients 1 2 4 8] [--seconds 2] [--rounds 3] [--json FILE]

Each client asks again as soon as it has its answer. Ours is the whole model on one target, so that only the way of
serving differs; `benchmarks.throughput` tunes. ONNX Runtime has one session with default settings that all clients
call, and N sessions that share out the cores. OpenVINO has the THROUGHPUT hint and its `AsyncInferQueue`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.concurrency.contenders import Contender
from benchmarks.concurrency.load import as_json, best, measure, table
from benchmarks.load_time import make_artifact
from benchmarks.support.models import benchmark_model, name_or_file, seeded_inputs
from benchmarks.support.results import here
from collage.backends.machine.process_policy import default_threads
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target

_MODELS = ("ppocr_cls", "light_resnet50")
_TARGETS = ("onnxruntime", "openvino")


def divisions(cores: int) -> list[tuple[int, int]]:
    """Instances and threads of each: all cores for one, two for each where there are more, and one for each."""
    return sorted({(1, cores), (max(1, cores // 2), min(2, cores)), (cores, 1)})


def peers(model: Path, cores: int) -> list[Contender]:
    """The other ways to serve a model."""
    own = [Contender("onnxruntime, one session", "onnxruntime", model)]
    own += [
        Contender(f"onnxruntime, {n} sessions × {t}", "onnxruntime", model, n, t)
        for n, t in divisions(cores)
    ]
    return [*own, Contender("openvino, THROUGHPUT", "openvino", model)]


def main() -> None:
    """Measure, print a table for each model, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=name_or_file, default=list(_MODELS))
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    asked = parser.parse_args()
    cores = default_threads()
    print(here())
    found = {}
    for name in asked.models:
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            built = benchmark_model(name)
            normalize(built.path, folder, built.dims)
            model = Model.open(folder / "model.onnx")
            ours = []
            for target in _TARGETS:
                whole = Plan((Candidate(model.index.all_nodes, Target.parse(target)),))
                path = make_artifact(model, whole, folder / target / "model.collage.onnx")
                ours += [
                    Contender(f"ours, {target}, {n} × {t}", "ours", path, n, t)
                    for n, t in divisions(cores)
                ]
            contenders = [*ours, *peers(folder / "model.onnx", cores)]
            rows = measure(
                contenders, seeded_inputs(name, model), asked.clients, asked.seconds, asked.rounds
            )
        print(f"\n{name}\n{table(rows)}")
        for count in asked.clients:
            own, other = best(rows, count, ours=True), best(rows, count, ours=False)
            ratio = own.throughput_per_s / other.throughput_per_s
            print(
                f"{count} clients: {own.contender} over {other.contender}: {ratio:.3f} × the throughput, "
                f"{own.p99_us / other.p99_us:.3f} × the p99, {own.cpu_us / other.cpu_us:.3f} × the CPU time"
            )
        found[name] = as_json(rows)
    if asked.json is not None:
        asked.json.write_text(
            json.dumps({"machine": here(), "rows": found}, indent=1), encoding="utf-8"
        )


if __name__ == "__main__":
    main()

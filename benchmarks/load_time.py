"""How long `collage.load` takes the first and the second time, with the cache of compiled blobs.

    python -m benchmarks.load_time [MODEL ...] [--repeat 3] [--json FILE]

Each model becomes an artifact with every single target of the list, and with a plan of five partitions
in which the targets alternate. Each load runs in a process of its own, so that only the cache folder
stays from the load before. Goal: the second load takes under a third of the first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.support.models import benchmark_model, name_or_file
from collage.artifact.artifact import crossing_values, make_verification, write_artifact
from collage.backends.contract import Available
from collage.backends.numerics.reference import run_reference, table_bounds
from collage.backends.numerics.seeded import seeded_inputs
from collage.backends.registry import resolve
from collage.backends.sandbox.run import run_in_child
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.emit.extract import with_outputs
from collage.partitioner.graph.linear_order import line
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target

_MODELS = ("light_resnet50", "light_densenet121")
_TARGETS = ("onnxruntime", "openvino", "mnn", "ncnn")
_PARTS = 5


def make_artifact(model: Model, plan: Plan, destination: Path, tolerance: float = 1e-2) -> Path:
    """An artifact with a given plan, without tuning."""
    inputs = [model.index.values[name] for name in model.index.inputs]
    seeds = (0, 1)
    bounds = table_bounds(model.index)
    samples = [seeded_inputs(inputs, seed, bounds) for seed in seeds]
    names = crossing_values(model, plan)
    folder = destination.parent / "reference"
    folder.mkdir(parents=True, exist_ok=True)
    path = with_outputs(model, names, folder)
    reference = [run_in_child(run_reference, path, sample, names) for sample in samples]
    proof = make_verification(seeds, samples, reference, {}, tolerance, bounds)
    write_artifact(model, plan, [None] * len(plan.partitions), {}, proof, {}, destination)
    return destination


def plans(model: Model, targets: Sequence[Target]) -> Iterator[tuple[str, Plan]]:
    """Every single target that supports the whole model, then five partitions on alternating targets."""
    takers = []
    for target in targets:
        backend = resolve(target)
        if all(backend.supports(model.index, i, target) is None for i in range(len(model.index.nodes))):
            takers.append(target)
            yield str(target), Plan((Candidate(model.index.all_nodes, target),))
    laid = line(model.index, model.index.all_nodes)
    count = len(laid.order)
    ends = sorted(
        {min(laid.waists, key=lambda w: abs(w - count * i / _PARTS)) for i in range(_PARTS + 1)}
    )
    parts = [
        Candidate(laid.run(start, end), takers[i % len(takers)])
        for i, (start, end) in enumerate(itertools.pairwise(ends))
    ]
    yield f"{len(parts)} parts", Plan(tuple(parts))


# Importing the runtimes is not what the cache is about, so it is done before the clock starts.
_LOAD = """
import contextlib, importlib, sys, time
from collage.backends.machine.process_policy import apply_environment
from collage.backends.registry import backends
from collage.artifact.session import load
modules = {"mnn": ("MNN.expr", "MNN.nn"), "ncnn": ("ncnn",)}
for name in sys.argv[3:] or backends():
    backends()[name].probe()
    for module in modules.get(name, ()):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
apply_environment()
begin = time.perf_counter()
session = load(sys.argv[1], cache_dir=sys.argv[2])
print(time.perf_counter() - begin)
session.close()
"""


def load_seconds(path: Path, cache_dir: Path | str, *runtimes: str) -> float:
    """One load in a fresh process that has imported these runtimes, or all."""
    command = [sys.executable, "-c", _LOAD, str(path), str(cache_dir), *runtimes]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8")
    return float(done.stdout.split()[-1])


def measure(path: Path, folder: Path, repeat: int) -> tuple[float, float]:
    """Medians of a first load (empty cache) and of a second one, in seconds."""
    times: tuple[list[float], list[float]] = ([], [])
    load_seconds(path, "")  # so that the first load does not wait for the disk alone
    for i in range(repeat):
        cache = folder / f"cache-{i}"
        cache.mkdir(parents=True)
        for nth in (0, 1):
            times[nth].append(load_seconds(path, cache))
        shutil.rmtree(cache)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    """Measure, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=name_or_file, default=list(_MODELS))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    chosen = parser.parse_args()
    targets = [t for t in map(Target.parse, _TARGETS) if isinstance(resolve(t).probe(), Available)]
    rows: list[dict[str, Any]] = []
    print(f"{'model':20} {'plan':14} {'first s':>8} {'second s':>9} {'share':>6}")
    with tempfile.TemporaryDirectory() as name:
        for number, model_name in enumerate(chosen.models):
            built = benchmark_model(model_name)
            place = Path(name) / f"model-{number}"
            place.mkdir()
            normalize(built.path, place, built.dims)
            model = Model.open(place / "model.onnx")
            for plan_name, plan in plans(model, targets):
                folder = place / plan_name.replace(" ", "-")
                path = make_artifact(model, plan, folder / "model.collage.onnx")
                first, second = measure(path, folder, chosen.repeat)
                print(
                    f"{model_name:20} {plan_name:14} {first:8.2f} {second:9.2f} {second / first:6.2f}"
                )
                rows.append(
                    {"model": model_name, "plan": plan_name, "first_s": first, "second_s": second}
                )
                shutil.rmtree(folder)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

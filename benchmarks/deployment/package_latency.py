"""The latency of a package beside `collage.load` of the artifact that it was written from.

    python -m benchmarks.deployment.package_latency [MODEL ...] [--plan TEXT] [--processes 3] [--rounds 16] [--json FILE]
    python -m benchmarks.deployment.package_latency --artifact FILE

Each side runs in a process of its own: the package's has no Collage. Both wait while the other one computes, and blocks
of calls take turns. Each repetition starts both processes anew, since builds differ. Goal: a ratio of at most 1.02.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import collage
from benchmarks.load_time import make_artifact, plans
from benchmarks.support.models import benchmark_model, name_or_file
from collage.backends.contract import Available
from collage.backends.machine.process_policy import default_threads
from collage.backends.measurement.ratio import compare_builds
from collage.backends.numerics.seeded import seeded_inputs
from collage.backends.registry import resolve
from collage.deploy.package import write_package
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target

_MODELS = ("light_resnet50", "ppocr_det", "light_squeezenet")
_TARGETS = ("onnxruntime", "openvino", "mnn", "ncnn")
_BLOCK_S = 0.15
# A block of calls for each line that comes in; its median in microseconds goes out.
_CALLS = """
import sys, time, statistics
import numpy as np
with np.load(sys.argv[3]) as kept:
    feed = {name: kept[name] for name in kept.files}
session.run(None, feed)
print("timed", 0, flush=True)
for _ in sys.stdin:
    session.run(None, feed)
    times, begin = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < float(sys.argv[4]):
        start = time.perf_counter_ns()
        session.run(None, feed)
        times.append((time.perf_counter_ns() - start) / 1e3)
    print("timed", statistics.median(times), flush=True)
"""
_PACKAGE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("collage", "onnx", "onnx_ir"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
sys.path.insert(0, sys.argv[1])
from runner import Session
session = Session(sys.argv[1])
assert session.variant != "plain", session.why
"""
_LOADED = """
import sys
import collage
session = collage.load(sys.argv[1], threads=int(sys.argv[2]), cache_dir=False)
"""


@dataclass(frozen=True)
class Row:
    """A package beside its artifact: medians, and how many times longer the package takes."""

    name: str
    load_us: float
    package_us: float
    ratio: float
    low: float
    high: float


class _Side:
    """A process that times a block of calls when it is asked."""

    def __init__(self, prepare: str, path: Path, threads: int, feed: Path) -> None:
        words = [sys.executable, "-c", prepare + _CALLS, path, str(threads), feed, str(_BLOCK_S)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        self._timed()

    def _timed(self) -> float:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # runtimes say things of their own there
            if line.startswith("timed "):
                return float(line.split()[1])
        raise RuntimeError("a process ended")

    def block_us(self) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._timed()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def measure(name: str, artifact: Path, folder: Path, processes: int, rounds: int) -> Row:
    """Write the package, and time it beside its artifact."""
    threads = default_threads()
    package = write_package(artifact, folder / "package", threads).folder
    with collage.load(artifact, threads=threads) as session:
        np.savez(folder / "feed.npz", **seeded_inputs(session.inputs, 7, session.bounds))
    builds = []
    for _ in range(processes):
        sides = [
            _Side(_PACKAGE, package, threads, folder / "feed.npz"),
            _Side(_LOADED, artifact, threads, folder / "feed.npz"),
        ]
        samples: tuple[list[float], list[float]] = ([], [])
        for number in range(rounds):
            for side in (0, 1) if number % 2 else (1, 0):
                samples[side].append(sides[side].block_us())
        builds.append(samples)
        for each in sides:
            each.close()
    ratio = compare_builds(builds)
    medians = [statistics.median(us for build in builds for us in build[side]) for side in (0, 1)]
    return Row(name, medians[1], medians[0], ratio.ratio, ratio.low, ratio.high)


def _artifacts(models: Sequence[str], wanted: str | None, folder: Path) -> Any:
    """The name and artifact of each plan of each model."""
    targets = [t for t in map(Target.parse, _TARGETS) if isinstance(resolve(t).probe(), Available)]
    for number, name in enumerate(models):
        built = benchmark_model(name)
        place = folder / f"model-{number}"
        place.mkdir()
        normalize(built.path, place, built.dims)
        model = Model.open(place / "model.onnx")
        for plan_name, plan in plans(model, targets):
            if wanted is None or wanted in plan_name:
                beside = place / plan_name.replace(" ", "-")
                yield f"{name} {plan_name}", make_artifact(model, plan, beside / "model.collage.onnx")


def main() -> None:
    """Measure, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=name_or_file, default=list(_MODELS))
    parser.add_argument("--artifact", type=Path, default=None)
    parser.add_argument("--plan", default="parts")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--json", type=Path, default=None)
    chosen = parser.parse_args()
    rows = []
    print(f"{'model and plan':32} {'load us':>10} {'package us':>10} {'ratio':>6}  95 % interval")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = (
            [(chosen.artifact.stem, chosen.artifact)]
            if chosen.artifact is not None
            else _artifacts(chosen.models, chosen.plan, folder)
        )
        for number, (title, artifact) in enumerate(given):
            place = folder / f"measured-{number}"
            place.mkdir()
            row = measure(title, artifact, place, chosen.processes, chosen.rounds)
            rows.append(asdict(row))
            print(
                f"{row.name:32} {row.load_us:10.1f} {row.package_us:10.1f} {row.ratio:6.3f}  "
                f"{row.low:.3f} to {row.high:.3f}",
                flush=True,
            )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

"""A second `collage.load` from its cache beside each runtime's own load of its cached or converted form.

    python -m benchmarks.deployment.cached_load [MODEL ...] [--repeat 5] [--json FILE]

Each load runs in a fresh process that has imported this runtime and no other; both sides take turns. The
runtimes' forms: ONNX Runtime's optimized graph with its weights beside it, OpenVINO's blob (`CACHE_DIR`),
MNN's and ncnn's converted files. Where a runtime may load another model from the same file (MNN),
`collage.load` also runs it on one of the artifact's reference inputs. So the runtimes' loads are shown with
one run, too. Goal: a ratio of at most 1.3.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.load_time import load_seconds, make_artifact
from benchmarks.support.models import benchmark_model, name_or_file
from collage.backends.contract import Available
from collage.backends.machine.process_policy import default_threads
from collage.backends.registry import resolve
from collage.deploy import runner
from collage.deploy.package import write_package
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target

_MODELS = ("light_resnet50",)
_TARGETS = ("onnxruntime", "openvino", "mnn", "ncnn")
_SETTLED_S = 2.5
# Prints the seconds of the load, and of load and runs.
_RUNS = 1
_OWN = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import numpy as np
import runner
place, part, cache = Path(sys.argv[2]), json.loads(sys.argv[3]), Path(sys.argv[4])
given, made = ([np.ones(spec["shape"], spec["dtype"]) for spec in part[side]] for side in ("inputs", "outputs"))

def own():
    return runner.PARTS[part["runtime"]](place, part)

if part["runtime"] == "onnxruntime":
    import onnxruntime as ort
    model, made = str(place / part["files"]["model"]), str(cache / "optimized.onnx")
    options = ort.SessionOptions()
    options.intra_op_num_threads = part["settings"]["threads"]
    if sys.argv[5] == "prepare":
        options.optimized_model_filepath = made
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "optimized.bin")
        ort.InferenceSession(model, options, ["CPUExecutionProvider"])
        sys.exit()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    def own():
        session = ort.InferenceSession(made, options, ["CPUExecutionProvider"])
        feed = {spec["name"]: array for spec, array in zip(part["inputs"], given)}
        class Part:
            bind = staticmethod(lambda given, made: lambda: session.run(None, feed))
        return Part
elif part["runtime"] == "openvino":
    sys.modules.setdefault("openvino_telemetry", None)
    import openvino
    compile_model = openvino.Core.compile_model
    def cached(self, *given):
        self.set_property({"CACHE_DIR": str(cache)})
        return compile_model(self, *given)
    openvino.Core.compile_model = cached
    if sys.argv[5] == "prepare":
        own()
        sys.exit()
elif part["runtime"] == "mnn":
    import MNN.expr, MNN.nn
else:
    import ncnn
if sys.argv[5] == "prepare":
    sys.exit()
begin = time.perf_counter()
loaded = own()
ready = time.perf_counter() - begin
call = loaded.bind(given, made)
for _ in range(int(sys.argv[6])):
    call()
print(ready, time.perf_counter() - begin)
"""


@dataclass(frozen=True)
class Row:
    """Medians in seconds of one model whole on one target."""

    model: str
    target: str
    ours_s: float
    own_s: float
    own_with_runs_s: float

    @property
    def ratio(self) -> float:
        """How many times longer ours takes than the runtime's load alone."""
        return self.ours_s / self.own_s

    @property
    def ratio_with_runs(self) -> float:
        """The same, where the runtime also runs as often as ours does."""
        return self.ours_s / self.own_with_runs_s


def measure(model_name: str, model: Model, target: Target, folder: Path, repeat: int) -> Row:
    """Time second loads of both sides in turn."""
    plan = Plan((Candidate(model.index.all_nodes, target),))
    artifact = make_artifact(model, plan, folder / "model.collage.onnx")
    package = write_package(artifact, folder / "package", default_threads())
    manifest = json.loads((package.folder / runner.MANIFEST).read_text(encoding="utf-8"))
    variant = manifest["components"]["model"]["variants"][package.variant]
    (part,) = variant["executor_info"][runner.NAMESPACE]["partitions"]
    ours_cache, own_cache = folder / "ours", folder / "own"
    ours_cache.mkdir()
    own_cache.mkdir()

    def own(mode: str) -> list[float]:
        words = [
            package.folder,
            package.folder / package.variant,
            json.dumps(part),
            own_cache,
            mode,
            str(_RUNS),
        ]
        done = subprocess.run(
            [sys.executable, "-c", _OWN, *words], check=True, stdout=subprocess.PIPE, encoding="utf-8"
        )
        return [float(each) for each in done.stdout.split()[-2:]] if mode == "load" else []

    own("prepare")
    # What a file system's clock cannot tell apart yet is hashed at each load; an artifact is older when it is deployed.
    time.sleep(_SETTLED_S)
    load_seconds(artifact, ours_cache)
    ours, alone, with_runs = [], [], []
    for _ in range(repeat):
        ours.append(load_seconds(artifact, ours_cache, target.backend))
        loaded, run = own("load")
        alone.append(loaded)
        with_runs.append(run)
    medians = [statistics.median(each) for each in (ours, alone, with_runs)]
    return Row(model_name, str(target), *medians)


def main() -> None:
    """Measure, print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=name_or_file, default=list(_MODELS))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None)
    chosen = parser.parse_args()
    targets = [t for t in map(Target.parse, _TARGETS) if isinstance(resolve(t).probe(), Available)]
    rows = []
    print(
        f"{'model':18} {'target':12} {'ours s':>7} {'own s':>7} {'ratio':>6} {'own, run':>8} {'ratio':>6}"
    )
    with tempfile.TemporaryDirectory() as name:
        for number, model_name in enumerate(chosen.models):
            built = benchmark_model(model_name)
            place = Path(name) / f"model-{number}"
            place.mkdir()
            normalize(built.path, place, built.dims)
            model = Model.open(place / "model.onnx")
            for target in targets:
                row = measure(model_name, model, target, place / str(target), chosen.repeat)
                print(
                    f"{row.model:18} {row.target:12} {row.ours_s:7.3f} {row.own_s:7.3f} {row.ratio:6.2f} "
                    f"{row.own_with_runs_s:8.3f} {row.ratio_with_runs:6.2f}",
                    flush=True,
                )
                rows.append({**asdict(row), "ratio": row.ratio, "ratio_with_runs": row.ratio_with_runs})
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Are other runtimes worth a backend? Each against the best of ONNX Runtime, OpenVINO and MNN.

    python -m benchmarks.other_runtimes --python OTHER/bin/python [--runtime NAME ...] [--model NAME ...]

The other runtimes live in a Python environment of their own. It has numpy and, for each runtime:
`torch`: torch and onnx2fx; `tvm`: apache-tvm; `iree`: iree-base-compiler[onnx] and iree-base-runtime;
`litert`: onnx2tf and ai-edge-litert. Blocks of calls alternate with blocks of the runtimes here, so
that both see the same machine.

The table has the ratio (other over best), the compile time and the error. A runtime with a ratio below
2 may be the fastest for a part of the model. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.other_runtimes.worker import RUNTIMES
from benchmarks.support.models import benchmark_model, seeded_inputs
from collage.backends.contract import CompileContext, SubModel
from collage.backends.machine import process_policy
from collage.backends.measurement.buffers import aligned
from collage.backends.numerics.reference import run_reference
from collage.backends.registry import resolve
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target

MODELS = (
    "light_squeezenet",
    "mobilenet_v2",
    "light_bvlc_alexnet",
    "light_resnet50",
    "ppocr_det",
    "ppocr_rec",
    "dcgan",
    "bert_base",
)
HERE = ("onnxruntime", "openvino", "mnn")
_BLOCK_S = 0.3
_ROUNDS = 5


class Other:
    """A runtime in a process of the other environment."""

    def __init__(self, python: Path, runtime: str, folder: Path, threads: int) -> None:
        worker = Path(__file__).with_name("worker.py")
        self._log = (folder / "log.txt").open("w")
        self._process = subprocess.Popen(
            [str(python), str(worker), runtime, str(folder), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            encoding="utf-8",
        )
        self.began = self._answer()

    def block_ms(self) -> float:
        """Median time of one call in a block."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{_BLOCK_S}\n")
        self._process.stdin.flush()
        return float(self._answer()["ms"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            return {"failure": f"ended with code {self._process.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer


def runners_here(
    model: Model, folder: Path, feeds: dict[str, np.ndarray], threads: int
) -> dict[str, Any]:
    """The runtimes of this environment, compiled and bound, by name."""
    index = model.index
    inputs = tuple(index.values[name] for name in index.inputs)
    outputs = tuple(index.values[name] for name in index.outputs)
    found: dict[str, Callable[[], None]] = {}
    for name in HERE:
        work = Path(tempfile.mkdtemp(dir=folder))
        target = Target.parse(name)
        try:
            with process_policy.caller_kept():
                executable = resolve(target).compile(
                    SubModel(model.path, inputs, outputs), target, CompileContext(threads, work)
                )
            arrays = [aligned(value.shape, value.dtype) for value in feeds.values()]
            for array, value in zip(arrays, feeds.values(), strict=True):
                array[...] = value
            executable.bind(
                arrays,
                [aligned(s.static_shape, np.dtype(s.dtype)) if s.is_static else None for s in outputs],
            )
            executable.run()
            found[name] = executable.run
        except (CollageError, RuntimeError) as error:
            print(f"# {name} cannot run it: {str(error)[:100]}", file=sys.stderr)
    return found


def block_ms(run: Callable[[], None]) -> float:
    """Median time of one call in a block, the first left out."""
    times = []
    end = time.perf_counter() + _BLOCK_S
    while len(times) < 2 or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:]) * 1e3


def compare(name: str, python: Path, runtimes: list[str], threads: int) -> list[dict[str, Any]]:
    """Every other runtime on one model."""
    chosen = benchmark_model(name)
    rows = []
    with tempfile.TemporaryDirectory(prefix="collage-other-") as temporary:
        folder = Path(temporary)
        normal = normalize(chosen.path, folder / "normal", dict(chosen.dims))
        model = Model.open(normal.path)
        feeds = seeded_inputs(name, model)
        expected = run_reference(normal.path, feeds, list(model.index.outputs))
        runs = runners_here(model, folder, feeds, threads)
        for runtime in runtimes:
            work = Path(tempfile.mkdtemp(dir=folder))
            _inline(normal.path, work / "model.onnx")
            np.savez(work / "feeds.npz", **feeds)
            np.savez(work / "expected.npz", **expected)
            row: dict[str, Any] = {"model": name, "runtime": runtime}
            other = Other(python, runtime, work, threads)
            row |= other.began
            if "failure" not in row:
                times: dict[str, list[float]] = {key: [] for key in (*runs, runtime)}
                for _ in range(_ROUNDS):
                    times[runtime].append(other.block_ms())
                    for key, run in runs.items():
                        times[key].append(block_ms(run))
                medians = {key: statistics.median(found) for key, found in times.items()}
                best = min(runs, key=lambda key: medians[key])
                ratios = [a / b for a, b in zip(times[runtime], times[best], strict=True)]
                row |= {"ms": medians, "best": best, "ratio": statistics.median(ratios)}
            other.close()
            print(json.dumps(row), file=sys.stderr, flush=True)
            rows.append(row)
    return rows


def _inline(source: Path, destination: Path) -> None:
    """One file with the weights inside."""
    import onnx

    onnx.save(onnx.load(source), destination)


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| model | runtime | ms | best here | ratio | compiles in s | error |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        if "ratio" not in row:
            lines.append(f"| {row['model']} | {row['runtime']} | {row['failure'][:80]} | | | | |")
            continue
        best = f"{row['best']} {row['ms'][row['best']]:.2f}"
        lines.append(
            f"| {row['model']} | {row['runtime']} | {row['ms'][row['runtime']]:.2f} | {best} "
            f"| {row['ratio']:.2f} | {row['compile_s']:.0f} | {row['error']:.1g} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--runtime", action="append", choices=sorted(RUNTIMES))
    parser.add_argument("--model", action="append")
    parser.add_argument("--threads", type=int, default=process_policy.default_threads())
    parser.add_argument("--json", type=Path, help="also write every number here")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in arguments.model or MODELS:
        rows += compare(
            name, arguments.python, arguments.runtime or sorted(RUNTIMES), arguments.threads
        )
    print(table(rows))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")

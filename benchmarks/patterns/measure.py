"""Which of the backends' patterns win: each pattern's nodes on every target, interleaved.

    python -m benchmarks.patterns [--pattern NAME ...] [--prepare] [--again] [--show]

For each pattern that a backend names, places in real models where it matches are cut out. They have
different sizes; where no model has the pattern, a small graph of a usual size is used. Each place is
compiled for every target, and the targets are timed interleaved.

A cell of the table has the fastest other target's latency over this target's, as the median over
places. It also counts the places where this target is the fastest beyond noise, and is bold where those
are most. Cells in brackets are of targets that support the nodes without naming the pattern.

`--prepare` finds the places and fills the caches of conversions; the machine may be busy then. Results
are kept for each pattern, so that an interrupted run continues. `--show` writes the table into
docs/results/patterns.md. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.patterns.table import TARGETS, table
from benchmarks.support.interleave import interleave
from benchmarks.support.models import benchmark_model
from benchmarks.support.results import write_table
from collage.backends.contract import Available, CompileContext, SubModel
from collage.backends.machine.process_policy import caller_kept, default_threads
from collage.backends.measurement.buffers import aligned
from collage.backends.numerics.comparison import output_error
from collage.backends.numerics.reference import run_reference
from collage.backends.numerics.seeded import seeded_inputs
from collage.backends.registry import canonical, resolve
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child, send_message
from collage.partitioner.candidate import bits
from collage.partitioner.emit.extract import extract
from collage.partitioner.graph.fingerprint import fingerprint
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.rules.pattern import Pattern
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from tests.models import seeded_input

MODELS = (
    *("light_bvlc_alexnet", "light_inception_v1", "light_resnet50", "light_squeezenet", "mobilenet_v2"),
    *("ppocr_det", "ppocr_rec", "ppocr_cls", "silero", "r3d_18", "vit_small", "bert_base", "gpt2"),
)
# What no model here has, at usual sizes: MobileNet's, YOLO's and EfficientNet's layers, and a bias first.
_CONV = "Conv <pads = [1, 1, 1, 1]> (x, w)"
_LAYER = "float[1,64,28,28]"
USUAL: Mapping[str, str] = {
    "conv_clip": f"({_LAYER} x) => ({_LAYER} y) <float low = {{0}}, float high = {{6}}> "
    f"{{ c = {_CONV}  y = Clip (c, low, high) }}",
    "conv_leaky_relu": f"({_LAYER} x) => ({_LAYER} y) "
    f"{{ c = {_CONV}  y = LeakyRelu <alpha = 0.1> (c) }}",
    "conv_hard_swish": f"({_LAYER} x) => ({_LAYER} y) {{ c = {_CONV}  y = HardSwish (c) }}",
    "conv_swish": f"({_LAYER} x) => ({_LAYER} y) {{ c = {_CONV}  g = Sigmoid (c)  y = Mul (c, g) }}",
    "add_conv_relu": f"({_LAYER} x, {_LAYER} z) => ({_LAYER} y) "
    f"{{ c = {_CONV}  a = Add (z, c)  y = Relu (a) }}",
    "conv_sum_relu": f"({_LAYER} x, {_LAYER} z) => ({_LAYER} y) "
    f"{{ c = {_CONV}  a = Sum (c, z)  y = Relu (a) }}",
    "bias_matmul": "(float[1,128,768] x) => (float[1,128,768] y) { m = MatMul (x, w)  y = Add (b, m) }",
    "layer_norm": "(float[1,128,768] x) => (float[1,128,768] y) "
    "<int64[1] axes = {-1}, float two = {2}, float epsilon = {0.00001}> "
    "{ m = ReduceMean (x, axes)  d = Sub (x, m)  p = Pow (d, two)  v = ReduceMean (p, axes) "
    "e = Add (v, epsilon)  r = Sqrt (e)  n = Div (d, r)  t = Mul (n, s)  y = Add (t, b) }",
}
_WEIGHTS: Mapping[str, tuple[int, ...]] = {"w": (64, 64, 3, 3), "b": (768,), "s": (768,)}
_FOLDER = Path.home() / ".cache" / "collage" / "patterns"
_PLACES = 3
RESULTS = Path("benchmarks/results/patterns.json")
_DOCUMENT, _MARK = Path("docs/results/patterns.md"), "patterns"
_ROUNDS, _BLOCK_S = 10, 0.012
_TOLERANCE = 1e-3


Place = tuple[str, Model, int]  # the model's name, the model, its nodes (bitset)


def named() -> dict[str, tuple[Pattern, list[str]]]:
    """Every pattern of the targets that are here, and the targets that name it."""
    found: dict[str, tuple[Pattern, list[str]]] = {}
    for text in here():
        target = Target.parse(text)
        for pattern in resolve(target).patterns(target):
            found.setdefault(pattern.name, (pattern, []))[1].append(text)
    return found


def here() -> list[str]:
    """The targets whose runtime is installed."""
    return [t for t in TARGETS if isinstance(resolve(Target.parse(t)).probe(), Available)]


def prepare(patterns: Mapping[str, Pattern]) -> None:
    """Find places, write them as models, and let every runtime convert them once."""
    places: dict[str, dict[str, Place]] = {name: {} for name in patterns}
    for model_name in MODELS:
        chosen, folder = benchmark_model(model_name), _FOLDER / "models" / model_name
        if not (folder / "model.onnx").exists():
            normalize(chosen.path, folder, dict(chosen.dims))
        model = Model.open(folder / "model.onnx")
        for name, pattern in patterns.items():
            for nodes in pattern.matches(model):
                places[name].setdefault(fingerprint(model.index, nodes), (model_name, model, nodes))
    for name, found in places.items():
        ordered = sorted(found.values(), key=lambda place: _work(place[1], place[2]))
        rows = []
        for number, (source, model, nodes) in enumerate(_spread(ordered)):
            made = extract(model, nodes, _place(name, number, fresh=True))
            rows.append(_facts(source, made.inputs, made.outputs))
        if not rows and name in USUAL:
            rows.append(_write_usual(name))
        (_FOLDER / name).mkdir(parents=True, exist_ok=True)
        (_FOLDER / name / "places.json").write_text(json.dumps(rows), encoding="utf-8")
        _time_places(name, rows, rounds=0)
        print(f"{name}: {', '.join(row['model'] for row in rows) or 'nowhere'}", flush=True)


def _work(model: Model, nodes: int) -> int:
    """Multiplications of the heaviest kind that a place may have: output elements by weights read."""
    index = model.index
    sizes = [index.values[n].size_bytes for i in bits(nodes) for n in index.nodes[i].outputs if n]
    weights = [
        index.values[n].size_bytes
        for i in bits(nodes)
        for n in index.nodes[i].inputs
        if n in index.constants
    ]
    return max(sizes) * max([1, *weights])


def _spread(ordered: Sequence[Place]) -> list[Place]:
    """Places from the first to the last quarter of those that there are."""
    count = min(_PLACES, len(ordered))
    return [ordered[int((i + 0.5) * len(ordered) / count)] for i in range(count)]


def _place(name: str, number: int, fresh: bool = False) -> Path:
    folder = _FOLDER / name / str(number)
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    return folder


def _write_usual(name: str) -> dict[str, Any]:
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> usual {USUAL[name]}')
    used = {value for node in proto.graph.node for value in node.input}
    for value in sorted(used & _WEIGHTS.keys()):
        shape = (768, 768) if name == "bias_matmul" and value == "w" else _WEIGHTS[value]
        weight = seeded_input(shape, "float32", 0) / math.sqrt(math.prod(shape[1:]))
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(weight), value))
    folder = _place(name, 0, fresh=True)
    folder.mkdir(parents=True)
    onnx.save(proto, folder / "written.onnx")
    index = Model.open(normalize(folder / "written.onnx", folder / "normal", {}).path).index
    (folder / "normal" / "model.onnx").rename(folder / "model.onnx")
    inputs, outputs = ([index.values[n] for n in names] for names in (index.inputs, index.outputs))
    return _facts("usual size", inputs, outputs)


def _facts(source: str, inputs: Iterable[TensorSpec], outputs: Iterable[TensorSpec]) -> dict[str, Any]:
    return {
        "model": source,
        "inputs": [[s.name, s.dtype, s.static_shape] for s in inputs],
        "outputs": [[s.name, s.dtype, s.static_shape] for s in outputs],
    }


def _time_places(name: str, rows: Sequence[Mapping[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """Samples by target of every place, or why there are none; one child for a pattern."""
    found: list[dict[str, Any]] = [{} for _ in rows]
    tried: list[tuple[int, str]] = []

    def keep(message: tuple[int, str, Any]) -> None:
        number, target, samples = message
        if samples is None:
            tried.append((number, target))
        else:
            found[number][target] = samples

    while True:
        tried.clear()
        waiting = {
            i: [t for t in here() if not isinstance(found[i].get(t), str)] for i in range(len(rows))
        }
        try:
            run_in_child(
                time_pattern,
                waiting,
                [_sub_model(name, i, row) for i, row in enumerate(rows)],
                _FOLDER / "compiled",
                rounds,
                limits=ChildLimits(timeout_s=240),
                on_message=keep,
            )
            return found
        except ChildFailed as failure:  # a runtime crashed: without it then
            if not tried:
                raise SystemExit(f"{name}: {failure}") from None
            number, target = tried[-1]
            found[number][target] = f"{failure.kind}: {failure.reason}"


def _sub_model(name: str, number: int, row: Mapping[str, Any]) -> SubModel:
    def specs(described: Iterable[Sequence[Any]]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(value, dtype, tuple(shape)) for value, dtype, shape in described)

    path = _place(name, number) / "model.onnx"
    return SubModel(path, specs(row["inputs"]), specs(row["outputs"]))


def time_pattern(
    waiting: dict[int, list[str]], models: list[SubModel], cache_dir: Path, rounds: int
) -> None:
    """Compile, verify and time every place on its targets (runs in a child)."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    for number, model in enumerate(models):
        values = seeded_inputs(model.inputs, seed=number)
        expected = run_reference(model.path, values, [spec.name for spec in model.outputs])
        runs: dict[str, Callable[[], None]] = {}
        for text in waiting[number]:
            send_message((number, text, None))
            target = canonical(Target.parse(text), default_threads())
            work = Path.cwd() / f"{number}-{text}"
            work.mkdir()
            try:
                with caller_kept():
                    context = CompileContext(default_threads(), work, cache_dir)
                    executable = resolve(target).compile(model, target, context)
                inputs = [aligned(s.static_shape, np.dtype(s.dtype)) for s in model.inputs]
                outputs = [aligned(s.static_shape, np.dtype(s.dtype)) for s in model.outputs]
                for buffer, spec in zip(inputs, model.inputs, strict=True):
                    np.copyto(buffer, values[spec.name])
                executable.bind(inputs, outputs)
                executable.run()
            except Exception as refusal:  # a runtime refuses by any exception
                lines = str(refusal).strip().splitlines() or [type(refusal).__name__]
                send_message((number, text, lines[0]))
                continue
            error = output_error("max", outputs, [expected[s.name] for s in model.outputs])
            if error > _TOLERANCE:
                send_message((number, text, f"wrong by {error:.2g}"))
                continue
            runs[text] = executable.run
        if rounds:
            for text, samples in interleave(runs, rounds, _BLOCK_S).items():
                send_message((number, text, samples))


def main() -> None:
    """Prepare, time, show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    known = named()
    parser.add_argument("--pattern", nargs="+", choices=sorted(known), metavar="NAME")
    parser.add_argument("--prepare", action="store_true", help="only what needs no quiet")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    parser.add_argument("--show", action="store_true", help="write the table into docs/")
    chosen = parser.parse_args()
    wanted = chosen.pattern or sorted(known)
    missing = [name for name in wanted if not (_FOLDER / name / "places.json").exists()]
    if chosen.prepare or missing:
        prepare({name: known[name][0] for name in (wanted if chosen.prepare else missing)})
    results: dict[str, Any] = (
        json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    )
    for name in wanted if not chosen.prepare else ():
        if name in results and not chosen.again:
            continue
        rows = json.loads((_FOLDER / name / "places.json").read_text(encoding="utf-8"))
        results[name] = {"rows": rows, "samples": _time_places(name, rows, _ROUNDS)}
        RESULTS.write_text(json.dumps(results) + "\n", encoding="utf-8")
    text = table(results, {name: targets for name, (_, targets) in known.items()})
    print(text)
    if chosen.show:
        write_table(_DOCUMENT, _MARK, text)

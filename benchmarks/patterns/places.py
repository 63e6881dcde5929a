"""Places where patterns match: cut out of real models, or small graphs of usual sizes."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.support.models import benchmark_model
from collage.backends.contract import Available
from collage.backends.registry import resolve
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
TARGETS = ("onnxruntime", "openvino", "mnn", "ncnn")
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
FOLDER = Path.home() / ".cache" / "collage" / "patterns"
_PLACES = 3

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


def find_places(patterns: Mapping[str, Pattern]) -> dict[str, list[dict[str, Any]]]:
    """Find places of each pattern and write them as models; return what describes them, by pattern."""
    places: dict[str, dict[str, Place]] = {name: {} for name in patterns}
    for model_name in MODELS:
        chosen, folder = benchmark_model(model_name), FOLDER / "models" / model_name
        if not (folder / "model.onnx").exists():
            normalize(chosen.path, folder, dict(chosen.dims))
        model = Model.open(folder / "model.onnx")
        for name, pattern in patterns.items():
            for nodes in pattern.matches(model):
                places[name].setdefault(fingerprint(model.index, nodes), (model_name, model, nodes))
    described = {}
    for name, found in places.items():
        ordered = sorted(found.values(), key=lambda place: _work(place[1], place[2]))
        rows = []
        for number, (source, model, nodes) in enumerate(_spread(ordered)):
            made = extract(model, nodes, place_folder(name, number, fresh=True))
            rows.append(_facts(source, made.inputs, made.outputs))
        if not rows and name in USUAL:
            rows.append(_write_usual(name))
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
        (FOLDER / name / "places.json").write_text(json.dumps(rows), encoding="utf-8")
        described[name] = rows
    return described


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


def place_folder(name: str, number: int, fresh: bool = False) -> Path:
    folder = FOLDER / name / str(number)
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
    folder = place_folder(name, 0, fresh=True)
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

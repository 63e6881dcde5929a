"""How the errors of a model's blocks add up: predicted against true error of random mixed plans.

    python -m benchmarks.error_addition --report docs/results/error-addition.md --picture docs/pictures/error-addition.svg

Each model is cut into blocks. First each block alone, then random mixes of blocks run on the reduced
target, with the rest on the exact one. The true error is that of the model's outputs against the
reference (metric `max`). Three predictions are compared: the sum of the blocks' own errors, the root of
the sum of their squares, and that root with shares fitted to half of the mixes and tested on the others
(`collage.accuracy.error_model`).

No latency is measured, so the machine may be busy. Finished models are kept and not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.error_addition.child import observe
from benchmarks.support.models import benchmark_model, names, seeded_inputs
from benchmarks.support.results import write_table
from collage.accuracy.block_cuts import first_cuts
from collage.accuracy.budget_search import address_space
from collage.accuracy.mix_runner import BlockSearchRequest
from collage.backends.machine.process_policy import default_threads
from collage.backends.numerics.tensor_files import write_samples
from collage.backends.sandbox.run import ChildLimits, run_in_child
from collage.model.reference import Reference, ingest
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.linear_order import line
from collage.partitioner.graph.op_kind import OpKind, kind_of
from collage.partitioner.target import Target

_MODELS = (
    *("ppocr_det", "ppocr_rec", "light_resnet50", "light_squeezenet", "light_bvlc_alexnet"),
    *("mobilenet_v2", "vit_small", "gpt2"),
)
_BLOCKS, _SAMPLES = 12, 2
_HEAVY_NODE = 50.0
_FLOOR = 1e-7
_WAYS = {"sum": "sum", "squares": "root of squares", "fitted": "fitted shares"}
_COLORS = ("#06c", "#c40", "#290", "#80b", "#a60", "#088", "#c07", "#555")
_SIZE, _EDGE = 460, 56


def main() -> None:
    """Run what is missing, and write table and picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=names(), default=list(_MODELS), metavar="NAME")
    parser.add_argument("--exact", default="openvino")
    parser.add_argument("--reduced", default="openvino -precision=bf16")
    parser.add_argument("--mixes", type=int, default=20, help="per model")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/error_addition.json"))
    parser.add_argument("--report", type=Path, default=None, help="write the table between its marks")
    parser.add_argument("--picture", type=Path, default=None, help="draw predicted against true")
    chosen = parser.parse_args()
    found = json.loads(chosen.output.read_text(encoding="utf-8")) if chosen.output.exists() else {}
    for name in chosen.models:
        if name in found:
            continue
        try:
            found[name] = _measure(name, [chosen.exact, chosen.reduced], chosen.mixes)
        except CollageError as error:
            print(f"{name}: {error}", flush=True)
            continue
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        chosen.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {len(found[name]['true'])} mixes", flush=True)
    print(_table(found))
    if chosen.report is not None:
        write_table(chosen.report, "error-addition", _table(found))
    if chosen.picture is not None:
        chosen.picture.write_text(_draw(found), encoding="utf-8")


def _measure(name: str, targets: Sequence[str], mixes: int) -> dict[str, Any]:
    benchmark = benchmark_model(name)
    with tempfile.TemporaryDirectory(prefix="collage-addition-") as folder:
        work = Path(folder)
        model, info = ingest(benchmark.path, work, dict(benchmark.dims))
        samples = [seeded_inputs(name, model, seed) for seed in range(_SAMPLES)]
        reference = Reference(model, samples, work / "reference", keep_all=False)
        made = [output for output in model.index.outputs if output in model.index.producer]
        write_samples(work / "samples.npz", samples)
        write_samples(work / "expected.npz", reference.values(made))
        heavy = (OpKind.OUT_FUSABLE, OpKind.OPAQUE)
        weights = tuple(
            _HEAVY_NODE if kind_of(node.domain, node.op_type) in heavy else 1.0
            for node in model.index.nodes
        )
        request = BlockSearchRequest(
            model=model.path,
            targets=tuple(map(Target.parse, targets)),
            times_us=(weights, weights),
            inputs=info.inputs,
            samples_file=work / "samples.npz",
            expected_file=work / "expected.npz",
            used_samples=_SAMPLES,
            metric="max",
            error_limits=(1.0,),
            threads=default_threads(),
            cuts=first_cuts(line(model.index, model.index.all_nodes), weights, _BLOCKS),
        )
        limits = ChildLimits(timeout_s=1200, address_bytes=address_space(model))
        found: dict[str, Any] = run_in_child(observe, request, mixes, limits=limits)
    return found


def _ratios(found: dict[str, Any], way: str) -> np.ndarray:
    true = np.maximum(np.array(found["true"]), _FLOOR)
    return np.asarray(np.log(true / np.maximum(np.array(found[way]), _FLOOR)))


def _table(found: dict[str, Any]) -> str:
    total = sum(len(model["true"]) for model in found.values())
    lines = [
        f"{total} random mixes of {len(found)} models; true error over predicted: the median, and the share of "
        "mixes that are predicted within a factor of 2.",
        "",
        "| model | true errors | " + " | ".join(_WAYS.values()) + " |",
        "|---|---|" + "---|" * len(_WAYS),
    ]
    rows = {**found, "all": _joined(found)}
    for name, model in rows.items():
        true = model["true"]
        cells = []
        for way in _WAYS:
            ratios = _ratios(model, way)
            within = float(np.mean(np.abs(ratios) <= math.log(2)))
            cells.append(f"{math.exp(float(np.median(ratios))):.2f}, {within:.0%}")
        lines.append(f"| {name} | {min(true):.1e} to {max(true):.1e} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _joined(found: dict[str, Any]) -> dict[str, list[float]]:
    return {key: [v for m in found.values() for v in m[key]] for key in ("true", *_WAYS)}


def _draw(found: dict[str, Any]) -> str:
    """Predicted by the root of squares to the right, true upward, both logarithmic."""
    everything = _joined(found)
    values = [max(v, _FLOOR) for v in (*everything["true"], *everything["squares"])]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def at(value: float) -> float:
        share = (math.log10(max(value, _FLOOR)) - low) / (high - low)
        return _EDGE + share * (_SIZE - 2 * _EDGE)

    width, floor, right = _SIZE + 130, _SIZE - _EDGE, _SIZE - _EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_SIZE}" font-family="sans-serif" '
        'font-size="11" fill="#333"><title>Predicted and true errors of mixed plans</title>',
        f'<rect width="{width}" height="{_SIZE}" fill="#fff"/>',
        f'<path d="M{_EDGE} {_EDGE}V{floor}H{right}" fill="none" stroke="#333"/>',
        f'<path d="M{_EDGE} {floor}L{right} {_EDGE}" stroke="#999" stroke-dasharray="4 3"/>',
        f'<text x="{_SIZE / 2}" y="{_SIZE - 14}" text-anchor="middle">root of the sum of squares</text>',
        f'<text x="14" y="{_SIZE / 2}" text-anchor="middle" transform="rotate(-90 14 {_SIZE / 2})">'
        "true error</text>",
    ]
    for power in range(low, high + 1):
        place = at(10.0**power)
        parts.append(f'<text x="{place:.1f}" y="{floor + 16}" text-anchor="middle">1e{power}</text>')
        parts.append(
            f'<text x="{_EDGE - 6}" y="{_SIZE - place + 4:.1f}" text-anchor="end">1e{power}</text>'
        )
    for number, (name, model) in enumerate(found.items()):
        color = _COLORS[number % len(_COLORS)]
        parts.append(f'<text x="{right + 14}" y="{_EDGE + 16 * number}" fill="{color}">● {name}</text>')
        for predicted, true in zip(model["squares"], model["true"], strict=True):
            parts.append(
                f'<circle cx="{at(predicted):.1f}" cy="{_SIZE - at(true):.1f}" r="2.5" fill="{color}" '
                'fill-opacity="0.7"/>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"

"""How well do measured partitions predict whole plans? Compares protocols of measurement.

    python -m benchmarks.prediction [--models NAME ...] [--protocols NAME ...] [--prepare] [--show]

For each model, random coarse plans (2 to 12 partitions on 2 to 3 targets) run end to end. Right after
each plan, each of its partitions runs alone under each protocol. The prediction is the sum of the
partitions, calls and borders, as the tuner computes it.

`--prepare` makes files, conversions and reference values; the machine may be busy then. `--show` writes
the tables and the picture into docs/. Each model has one file in a folder,
benchmarks/results/prediction unless `--results` names another. One folder holds the results of one
machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.prediction.estimates import estimate_parts
from benchmarks.prediction.plans import Part, choose_cuts, draw_plans
from benchmarks.prediction.rounds import Rounds, Way, run_rounds
from benchmarks.prediction.tables import estimate_table, picture, table
from benchmarks.support.models import benchmark_model, names, seeded_inputs
from benchmarks.support.results import write_table
from collage.backends.contract import Available, SubModel
from collage.backends.machine.hardware import hardware
from collage.backends.machine.process_policy import default_threads
from collage.backends.measurement.protocol import Protocol, eviction_for
from collage.backends.numerics.tensor_files import write_samples
from collage.backends.registry import resolve
from collage.backends.sandbox.run import ChildFailed, ChildLimits, run_in_child
from collage.costs.measurement_context import touched_bytes, weight_bytes, written_sizes
from collage.model.reference import Reference
from collage.partitioner.candidate import bits
from collage.partitioner.emit.extract import extract
from collage.partitioner.graph.linear_order import line
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.timing.interleaved import time_plans
from collage.timing.request import PlanStep, PlanSteps, TimingRequest

_RESULTS = Path("benchmarks/results/prediction")
_CACHE = Path.home() / ".cache" / "collage" / "prediction"
# What the tuner uses (`collage.costs.measurement_context`): the picture and the estimates are about it.
CHOSEN = "weights and reused values"
_DOCUMENT, _PICTURE = Path("docs/results/prediction.md"), Path("docs/pictures/prediction.svg")
_TARGETS = ("onnxruntime", "openvino", "mnn", "ncnn")
# The plans to run, from the number of stretches and the targets that support the nodes between two cuts.
Choose = Callable[[int, Mapping[tuple[int, int], Sequence[str]]], Sequence[tuple[Part, ...]]]
_ROUNDS, _BLOCK_S, _COMPARISON_S, _ROUNDS_S = 24, 0.02, 12.0, 90.0


def ways_to_measure(weights: int, written: int, touched: int) -> dict[str, Way]:
    """The ways of measuring parts that are compared, by name.

    Args:
        weights: bytes of the model's weights.
        written: bytes of all that it writes.
        touched: bytes that a run touches (`collage.costs.measurement_context.touched_bytes`).
    """
    threads = default_threads()

    def evicting(wanted: int, walkers: int = threads) -> Way:
        return Way(eviction_for(wanted, hardware().last_level_cache_bytes), walkers)

    return {
        "hot": Way(0, threads),
        "weights": evicting(weights),
        CHOSEN: evicting(touched),
        "weights and all values": evicting(weights + written),
        "the same, by one core": evicting(weights + written, 1),
    }


def prepare(name: str, targets: Sequence[str], folder: Path, choose: Choose) -> None:
    """Choose plans; write their regions with sample values, and convert them for every runtime."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    built = benchmark_model(name)
    normalize(built.path, folder / "model", dict(built.dims))
    model = Model.open(folder / "model" / "model.onnx")
    samples = [seeded_inputs(name, model)]
    reference = Reference(model, samples, folder / "reference")
    cuts = choose_cuts(model)
    laid = line(model.index, model.index.all_nodes)
    allowed = {}
    for start, end in itertools.combinations(range(len(cuts)), 2):
        inside = laid.run(cuts[start], cuts[end])
        allowed[start, end] = [t for t in targets if _takes(model, inside, Target.parse(t))]
    plans = choose(len(cuts) - 1, allowed)
    regions = {}
    for start, end, _ in sorted({part for plan in plans for part in plan}):
        region = f"{start}-{end}"
        place = folder / region
        if region in regions:
            continue
        made = extract(model, laid.run(cuts[start], cuts[end]), place)
        write_samples(place / "inputs.npz", reference.values([s.name for s in made.inputs]))
        regions[region] = {
            "inputs": [[s.name, s.dtype, s.static_shape] for s in made.inputs],
            "outputs": [[s.name, s.dtype, s.static_shape] for s in made.outputs],
        }
    write_samples(folder / "samples.npz", samples)
    outputs = [value for value in model.index.outputs if value in model.index.producer]
    write_samples(folder / "expected.npz", reference.values(outputs))
    inputs = [model.index.values[value] for value in model.index.inputs]
    shutil.rmtree(folder / "reference")
    (folder / "compiled").mkdir()
    facts: dict[str, Any] = {
        "model": name,
        "nodes": len(model.index.nodes),
        "regions": regions,
        "plans": plans,
        "inputs": [[s.name, s.dtype, s.static_shape] for s in inputs],
        "outputs": outputs,
    }
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    # Running each plan once fills the cache of conversions, and shows which cannot run.
    kept = run_plans(folder, facts, rounds=0)
    facts["plans"] = [plan for plan, timing in zip(plans, kept, strict=True) if not timing["failure"]]
    for plan, timing in zip(plans, kept, strict=True):
        if timing["failure"]:
            print(f"  left out: {plan}: {timing['failure']}")
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    print(f"{name}: {len(facts['plans'])} plans of {len({p for plan in plans for p in plan})} parts")


def _takes(model: Model, nodes: int, target: Target) -> bool:
    backend = resolve(target)
    return all(backend.supports(model.index, node, target) is None for node in bits(nodes))


def measure(
    name: str, folder: Path, wanted: Sequence[str], again: bool, results: Path
) -> dict[str, Any]:
    """Run the plans and their parts; needs an idle machine."""
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    facts["plans"] = [[tuple(part) for part in plan] for plan in facts["plans"]]
    model = Model.open(folder / "model" / "model.onnx")
    weights, written, touched = weight_bytes(model), sum(written_sizes(model)), touched_bytes(model)
    offered = ways_to_measure(weights, written, touched)
    ways = {n: offered[n] for n in wanted}
    evict = {n: way.evict_bytes for n, way in ways.items()}
    path = results / f"{name}.json"
    if path.exists() and not again:
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if evict.items() <= known["evict_bytes"].items():
            return known
    begin = time.monotonic()
    parts = sorted({part for plan in facts["plans"] for part in plan})
    estimates_us, unmapped = estimate_parts(folder, facts, parts, Protocol(offered[CHOSEN].evict_bytes))
    request = Rounds(
        plans=facts["plans"],
        regions={region: _sub_model(folder, region, facts) for region in facts["regions"]},
        inputs=_specs(facts["inputs"]),
        outputs=tuple(facts["outputs"]),
        samples_file=folder / "samples.npz",
        ways=ways,
        threads=default_threads(),
        cache_dir=folder / "compiled",
        budget_s=_ROUNDS_S,
    )
    try:
        timed = run_in_child(
            run_rounds,
            request,
            limits=ChildLimits(timeout_s=_ROUNDS_S * 10 + 300),
            on_message=lambda number: print(f"{name}: round {number + 1}", flush=True),
        )
    except ChildFailed as failure:
        raise SystemExit(f"running plans of {name} failed: {failure}") from None
    found = {
        "model": name,
        "hardware": hardware().describe(),
        "weight_bytes": weights,
        "written_bytes": written,
        "touched_bytes": touched,
        "seconds": time.monotonic() - begin,
        "plans": [
            {"parts": plan, "values": _values(plan, facts["regions"])} for plan in facts["plans"]
        ],
        **asdict(timed),
        "evict_bytes": evict,
        "estimates_us": estimates_us,
        "unmapped": unmapped,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def _values(plan: Sequence[Part], regions: Mapping[str, Any]) -> int:
    """How many values cross borders, once for each partition that reads them."""
    made = {n for start, end, _ in plan for n, *_ in regions[f"{start}-{end}"]["outputs"]}
    return sum(n in made for start, end, _ in plan for n, *_ in regions[f"{start}-{end}"]["inputs"])


def run_plans(
    folder: Path, facts: Mapping[str, Any], rounds: int, budget_s: float = _COMPARISON_S
) -> list[dict[str, Any]]:
    """Run the plans that were prepared in turn; what each and each of its parts took, in microseconds."""
    comparison = TimingRequest(
        plans=tuple(
            PlanSteps(tuple(PlanStep(f"{a}-{b}", Target.parse(target)) for a, b, target in plan))
            for plan in facts["plans"]
        ),
        regions={region: _sub_model(folder, region, facts) for region in facts["regions"]},
        inputs=_specs(facts["inputs"]),
        outputs=tuple(facts["outputs"]),
        samples_file=folder / "samples.npz",
        expected_file=folder / "expected.npz",
        error_limit=1e-2,
        threads=default_threads(),
        rounds=rounds,
        budget_s=budget_s,
        block_s=_BLOCK_S,
        cache_dir=folder / "compiled",
        prune=False,
    )
    return [
        {"samples_us": t.samples_us, "step_us": t.step_us, "failure": t.failure}
        for t in time_plans(comparison)
    ]


def _sub_model(folder: Path, region: str, facts: Mapping[str, Any]) -> SubModel:
    shapes = facts["regions"][region]
    return SubModel(folder / region / "model.onnx", _specs(shapes["inputs"]), _specs(shapes["outputs"]))


def _specs(described: Sequence[Sequence[Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in described)


def _measured(folder: Path) -> list[dict[str, Any]]:
    """What was measured before, by model."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def main() -> None:
    """Prepare, measure, show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=names(), metavar="NAME", default=[])
    parser.add_argument(
        "--protocols", nargs="+", choices=list(ways_to_measure(0, 0, 0)), metavar="NAME"
    )
    parser.add_argument("--targets", nargs="+", default=None)
    parser.add_argument("--plans", type=int, default=24)
    parser.add_argument("--prepare", action="store_true", help="only what needs no quiet")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    parser.add_argument("--show", action="store_true", help="write the tables and the picture to docs/")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="what this machine measured")
    chosen = parser.parse_args()
    strangers = {r["hardware"] for r in _measured(chosen.results)} - {hardware().describe()}
    if chosen.models and not chosen.prepare and strangers:
        parser.error(
            f"{chosen.results} holds what another machine measured ({', '.join(strangers)}); "
            "name another folder with --results"
        )
    targets = chosen.targets or [
        t for t in _TARGETS if isinstance(resolve(Target.parse(t)).probe(), Available)
    ]
    for name in chosen.models:
        folder = _CACHE / name
        if chosen.prepare or not (folder / "facts.json").exists():
            prepare(name, targets, folder, partial(draw_plans, count=chosen.plans, seed=0))
        if not chosen.prepare:
            wanted = chosen.protocols or list(ways_to_measure(0, 0, 0))
            measure(name, folder, wanted, chosen.again, chosen.results)
    results = _measured(chosen.results)
    text = f"{table(results)}\n{estimate_table(results, CHOSEN)}"
    print(text)
    if chosen.show:
        write_table(_DOCUMENT, "prediction", text)
        _PICTURE.write_text(picture(results, CHOSEN), encoding="utf-8")

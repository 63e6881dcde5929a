"""How well do measured parts predict whole plans? Chooses the protocol of measurement by evidence.

    python -m benchmarks.prediction [--models NAME ...] [--protocols NAME ...] [--prepare] [--show]

For each model random coarse plans (2 to 12 partitions on 2 to 3 targets) are run end to end, in turn, and
every part of them is measured alone under each protocol. What a plan was promised is the sum of its
parts and of its calls and borders, as the tuner reckons it. `--prepare` only does what needs no quiet
(files, conversions, reference values); `--show` writes the tables and the picture into docs/. One file for each model is kept in benchmarks/results/prediction, so it can be done piecewise;
a protocol that was measured before is not measured again unless the plans are.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from backends.contract import Available, CompileContext, SubModel
from backends.hardware import hardware
from backends.measure import aligned
from backends.policy import default_threads
from backends.protocol import Protocol, eviction_for
from backends.registry import canonical, resolve
from backends.samples import read_samples, write_samples
from backends.sandbox import ChildFailed, ChildLimits, run_in_child, send_message
from backends.timing import preparation, sample_runs
from benchmarks.models import benchmark_model, names, seeded_inputs
from benchmarks.prediction_estimates import estimate_parts
from benchmarks.prediction_plans import Part, choose_cuts, draw_plans
from benchmarks.prediction_show import estimate_table, picture, table, write_between
from collage.context import model_bytes
from collage.end_to_end import Contest, PlanStep, PlanSteps, hold
from collage.intake import Reference
from partitioner.candidate import bits
from partitioner.extract import extract
from partitioner.ingest import normalise
from partitioner.linear_order import line
from partitioner.model import Model
from partitioner.target import Target
from partitioner.tensor import TensorSpec

RESULTS = Path("benchmarks/results/prediction")
_CACHE = Path.home() / ".cache" / "collage" / "prediction"
# What the tuner uses (`collage.context`): the picture and the estimates are about it.
CHOSEN = "model, at most twice the cache"
_DOCUMENT, _MARK, _PICTURE = Path("docs/measurement.md"), "prediction", Path("docs/prediction.svg")
_TARGETS = ("onnxruntime", "openvino", "mnn", "ncnn")
# Given how many stretches there are and which targets take the nodes between two cuts: the plans to run.
Choose = Callable[[int, Mapping[tuple[int, int], Sequence[str]]], Sequence[tuple[Part, ...]]]
# Quick enough for a hundred parts in a minute. The machine changes speed within seconds, so every part
# is timed in several passes over all of them.
_QUICK = Protocol(min_s=0.02, max_s=0.05, warm_up_s=0.0)
_PASSES = 3
_ROUNDS, _BLOCK_S, _CONTEST_S = 24, 0.02, 12.0


def protocols(size_bytes: int, weight_bytes: int) -> dict[str, Protocol]:
    """The protocols that are compared, by name.

    Args:
        size_bytes: the model's weights and intermediate values (`collage.context.model_bytes`).
        weight_bytes: weights, and what intermediate values take when their memory is used again.
    """
    cache = hardware().last_level_cache_bytes
    return {
        "hot": _QUICK,
        "weights": replace(_QUICK, evict_bytes=eviction_for(weight_bytes, cache)),
        "model, at most the cache": replace(_QUICK, evict_bytes=eviction_for(size_bytes, cache // 2)),
        CHOSEN: replace(_QUICK, evict_bytes=eviction_for(size_bytes, cache)),
        "always twice the cache": replace(_QUICK, evict_bytes=2 * cache),
    }


def prepare(name: str, targets: Sequence[str], folder: Path, choose: Choose) -> None:
    """Choose plans; write their regions with sample values, and convert them for every runtime."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    built = benchmark_model(name)
    normalise(built.path, folder / "model", dict(built.dims))
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
    weights = sum(f.stat().st_size for f in (folder / "model").iterdir())
    index = model.index
    sizes = [s.size_bytes for name, s in index.values.items() if name not in index.constants]
    shutil.rmtree(folder / "reference")
    (folder / "compiled").mkdir()
    facts: dict[str, Any] = {
        "model": name,
        "nodes": len(model.index.nodes),
        # A runtime keeps what a layer reads and makes, and what a branch waits for.
        "weight_bytes": weights + 3 * max(sizes),
        "regions": regions,
        "plans": plans,
        "inputs": [[s.name, s.dtype, s.static_shape] for s in inputs],
        "outputs": outputs,
    }
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    # Running each plan once fills the cache of conversions, and shows who cannot run.
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


def measure(name: str, folder: Path, wanted: Sequence[str], again: bool) -> dict[str, Any]:
    """Run the plans end to end and measure their parts; what takes quiet."""
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    size = model_bytes(Model.open(folder / "model" / "model.onnx"))
    path = RESULTS / f"{name}.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() and not again else {}
    offered = protocols(size, facts["weight_bytes"])
    done = known.get("evict_bytes", {})
    missing = {n: offered[n] for n in wanted if done.get(n) != offered[n].evict_bytes}
    if known and not missing:
        return known
    begin = time.monotonic()
    parts = sorted({tuple(part) for plan in facts["plans"] for part in plan})
    estimates_us, unmapped = estimate_parts(folder, facts, parts, offered[CHOSEN])
    halves = [run_plans(folder, facts, _ROUNDS)]
    parts_us = _time_parts(folder, facts, missing)
    # The machine drifts: the parts are measured between two halves of what they shall predict.
    halves.append(run_plans(folder, facts, _ROUNDS))
    plans = []
    for position, plan in enumerate(facts["plans"]):
        both = [half[position] for half in halves]
        steps = [s for s in (half["step_us"] for half in both) if s]
        plans.append(
            {
                "parts": plan,
                "samples_us": [us for half in both for us in half["samples_us"]],
                "step_us": [float(np.mean(times)) for times in zip(*steps, strict=True)],
                "values": _values(plan, facts["regions"]),
            }
        )
    found = {
        "model": name,
        "hardware": hardware().describe(),
        "model_bytes": size,
        "seconds": time.monotonic() - begin,
        "plans": plans,
        "parts_us": {**known.get("parts_us", {}), **parts_us},
        "evict_bytes": {**done, **{n: protocol.evict_bytes for n, protocol in missing.items()}},
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
    folder: Path, facts: Mapping[str, Any], rounds: int, budget_s: float = _CONTEST_S
) -> list[dict[str, Any]]:
    """Run the plans that were prepared in turn; what each and each of its parts took, in microseconds."""
    contest = Contest(
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
        {"samples_us": t.samples_us, "step_us": t.step_us, "failure": t.failure} for t in hold(contest)
    ]


def _time_parts(
    folder: Path, facts: Mapping[str, Any], wanted: Mapping[str, Protocol]
) -> dict[str, dict[str, float]]:
    """The median time of each part under each protocol, by the part's name."""
    found: dict[str, dict[str, float]] = {name: {} for name in wanted}

    def keep(message: tuple[str, dict[str, float]]) -> None:
        part, times = message
        for protocol, us in times.items():
            found[protocol][part] = us

    parts = sorted({tuple(part) for plan in facts["plans"] for part in plan})
    for target in sorted({part[2] for part in parts}):
        regions = [f"{start}-{end}" for start, end, name in parts if name == target]
        models = [_sub_model(folder, region, facts) for region in regions]
        limits = ChildLimits(timeout_s=600)
        try:
            run_in_child(
                time_regions,
                target,
                regions,
                models,
                dict(wanted),
                folder / "compiled",
                limits=limits,
                on_message=keep,
            )
        except ChildFailed as failure:
            raise SystemExit(f"measuring parts on {target} failed: {failure}") from None
    return found


def time_regions(
    target: str,
    names: list[str],
    models: list[SubModel],
    wanted: dict[str, Protocol],
    cache_dir: Path,
) -> None:
    """Time regions on a target under every protocol, in passes over all (runs in a child)."""
    parsed = canonical(Target.parse(target), default_threads())
    runs = []
    for name, model in zip(names, models, strict=True):
        work = Path.cwd() / name
        work.mkdir()
        context = CompileContext(default_threads(), work, cache_dir)
        executable = resolve(parsed).compile(model, parsed, context)
        (sample,) = read_samples(model.path.parent / "inputs.npz", model.inputs)
        inputs = [aligned(s.static_shape, np.dtype(s.dtype)) for s in model.inputs]
        outputs = [aligned(s.static_shape, np.dtype(s.dtype)) for s in model.outputs]
        values = [sample[s.name] for s in model.inputs]
        for buffer, value in zip(inputs, values, strict=True):
            np.copyto(buffer, value)
        executable.bind(inputs, outputs)
        prepared = {p: preparation(protocol, inputs, values) for p, protocol in wanted.items()}
        runs.append((name, executable, prepared))
    samples: dict[str, dict[str, list[float]]] = {name: {p: [] for p in wanted} for name in names}
    for _ in range(_PASSES):
        for name, executable, prepared in runs:
            for protocol_name, protocol in wanted.items():
                found = sample_runs(executable.run, protocol, prepared[protocol_name])
                samples[name][protocol_name].append(statistics.median(found))
    for name, _, _ in runs:
        medians = {p: statistics.median(found) for p, found in samples[name].items()}
        send_message((f"{name} {target}", medians))


def _sub_model(folder: Path, region: str, facts: Mapping[str, Any]) -> SubModel:
    shapes = facts["regions"][region]
    return SubModel(folder / region / "model.onnx", _specs(shapes["inputs"]), _specs(shapes["outputs"]))


def _specs(described: Sequence[Sequence[Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in described)


def main() -> None:
    """Prepare, measure, show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=names(), metavar="NAME", default=[])
    parser.add_argument(
        "--protocols", nargs="+", choices=list(protocols(1 << 30, 1 << 30)), metavar="NAME"
    )
    parser.add_argument("--targets", nargs="+", default=None)
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--prepare", action="store_true", help="only what needs no quiet")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    parser.add_argument("--show", action="store_true", help="write the tables and the picture to docs/")
    chosen = parser.parse_args()
    targets = chosen.targets or [
        t for t in _TARGETS if isinstance(resolve(Target.parse(t)).probe(), Available)
    ]
    for name in chosen.models:
        folder = _CACHE / name
        if chosen.prepare or not (folder / "facts.json").exists():
            prepare(name, targets, folder, partial(draw_plans, count=chosen.plans, seed=0))
        if not chosen.prepare:
            measure(name, folder, chosen.protocols or list(protocols(1 << 30, 1 << 30)), chosen.again)
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    text = f"{table(results)}\n{estimate_table(results, CHOSEN)}"
    print(text)
    if chosen.show:
        write_between(_DOCUMENT, _MARK, text)
        _PICTURE.write_text(picture(results, CHOSEN), encoding="utf-8")


if __name__ == "__main__":
    # Children find their function by its module's name, which here is not `__main__`.
    from benchmarks import prediction

    prediction.main()

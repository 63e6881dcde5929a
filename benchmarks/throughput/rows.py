"""Calls of several requests and pipelines beside plain instances: requests per second of each, in turn.

    python -m benchmarks.throughput.rows [MODEL ...] [-t TARGET ...] [--seconds 1] [--rounds 3] [--json FILE]

Whole models on each target, with 1, 4 and 8 requests a call, and one plan of five partitions as instances and as pipelines.
Each trial runs in a process of its own with as many clients as requests are under way, as the tuner measures. Ratios are
medians over rounds, to the best with one request a call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.load_time import plans
from benchmarks.support.models import benchmark_model, name_or_file
from benchmarks.support.results import here
from collage.backends.machine.process_policy import default_threads
from collage.backends.numerics.seeded import seeded_inputs
from collage.backends.numerics.tensor_files import write_samples
from collage.backends.sandbox.run import ChildLimits, run_in_child
from collage.model.reference import Reference
from collage.model.sub_models import RegionFiles
from collage.objectives.child import run_trial, step_times_us
from collage.objectives.more_rows import with_rows
from collage.objectives.settings import stages_of
from collage.objectives.trial import TrialRequest
from collage.partitioner.candidate import Plan
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.timing.request import PlanStep, PlanSteps, PlanTiming, TimingRequest
from collage.timing.timed_plan import TimedPlan

_TARGETS = ("onnxruntime", "openvino")
_ROWS = (1, 4, 8)
_LIMITS = ChildLimits(timeout_s=300.0)


def _timing(model: Model, plan: Plan, folder: Path) -> TimingRequest:
    """A request for a plan, on one seeded sample."""
    inputs = tuple(model.index.values[name] for name in model.index.inputs)
    reference = Reference(model, [seeded_inputs(inputs, 0)], folder / "reference")
    made = [name for name in model.index.outputs if name in model.index.producer]
    folder.mkdir(parents=True, exist_ok=True)
    write_samples(folder / "samples.npz", reference.samples)
    write_samples(folder / "expected.npz", reference.values(made))
    files = RegionFiles(model, folder / "regions")
    steps, regions = [], {}
    for part in plan.partitions:
        sub = files.get(part.nodes)
        regions[str(sub.path)] = sub
        steps.append(PlanStep(str(sub.path), part.target))
    return TimingRequest(
        plans=(PlanSteps(tuple(steps)),),
        regions=regions,
        inputs=inputs,
        outputs=tuple(made),
        samples_file=folder / "samples.npz",
        expected_file=folder / "expected.npz",
        cache_dir=folder,
    )


def _contenders(
    model: Model, targets: Sequence[Target], folder: Path, seconds: float
) -> Iterator[tuple[str, str, TrialRequest]]:
    """The plan, what is tried of it, and the request for a trial."""
    cores = default_threads()
    divisions = [(1, cores)] if cores == 1 else [(1, cores), (cores, 1)]
    forms = {1: model}
    for rows in _ROWS[1:]:
        made = with_rows(model, rows, folder / f"rows-{rows}", None)
        if isinstance(made, str):
            print(f"{rows} requests a call are left out: {made}")
            continue
        forms[rows] = made.model
    for name, plan in plans(model, targets):
        place = folder / name.replace(" ", "-")
        for rows, form in forms.items():
            timing = _timing(form, plan, place / str(rows))
            for count, threads in divisions:
                request = TrialRequest(replace(timing, threads=threads), count, seconds, rows)
                yield name, f"{count} × {threads}, {rows} a call", request
            times = run_in_child(step_times_us, timing, limits=_LIMITS) if rows == 1 else ()
            timed = {0: PlanTiming(samples_us=(sum(times),), step_us=times)}
            entry = TimedPlan(plan, name, timings=timed, baseline_ratios={0: [1.0]})
            for count in range(2, cores + 1):
                if stages := stages_of(entry, count):
                    threads = cores // count
                    request = TrialRequest(
                        replace(timing, threads=threads), count + 1, seconds, 1, stages
                    )
                    yield name, f"pipeline of {count}", request


def main() -> None:
    """Measure, print a table for each model, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=name_or_file, default=["ppocr_cls"])
    parser.add_argument("-t", "--target", action="append", default=[])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    asked = parser.parse_args()
    targets = [Target.parse(text) for text in asked.target or _TARGETS]
    print(here())
    found = []
    for name in asked.models:
        with tempfile.TemporaryDirectory() as text:
            built = benchmark_model(name)
            normalize(built.path, Path(text), built.dims)
            model = Model.open(Path(text) / "model.onnx")
            tried = list(_contenders(model, targets, Path(text) / "plans", asked.seconds))
            rates: dict[tuple[str, str], list[float]] = {}
            for number in range(asked.rounds):
                for plan, what, request in tried if number % 2 == 0 else reversed(tried):
                    trial = run_in_child(run_trial, request, limits=_LIMITS)
                    if trial.failure is not None:
                        print(f"{plan}, {what}: {trial.failure}")
                    rates.setdefault((plan, what), []).append(trial.throughput)
            best = [
                max(rates[p, w][n] for p, w in rates if w.endswith(", 1 a call"))
                for n in range(asked.rounds)
            ]
            print(f"\n{name}\n{'plan':14} {'tried':18} {'requests/s':>10} {'ratio':>6}")
            for (plan, what), each in rates.items():
                ratio = statistics.median(rate / top for rate, top in zip(each, best, strict=True))
                print(f"{plan:14} {what:18} {statistics.median(each):10.1f} {ratio:6.2f}", flush=True)
                found.append({"model": name, "plan": plan, "tried": what, "ratio": ratio})
    if asked.json is not None:
        asked.json.write_text(
            json.dumps({"machine": here(), "rows": found}, indent=1), encoding="utf-8"
        )


if __name__ == "__main__":
    main()

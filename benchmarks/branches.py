"""Does it pay to run independent partitions at once?

    python -m benchmarks.branches [--model NAME ...] [--target TARGET ...] [--forks 6]

For each model and target, some joins spread over the model are chosen. At each, the branches are cut
out and run at once on half of the threads each (a `fork`). Forks and the whole model run interleaved in
one child. Printed is the best fork's speedup over the whole model with its 95 % interval. Run it on an
idle machine.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.support.models import benchmark_model, seeded_inputs
from collage.backends.machine import process_policy
from collage.backends.numerics.tensor_files import write_samples
from collage.backends.registry import target_spec, tunable_options
from collage.events import ignore
from collage.model.reference import Reference
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.target import Target
from collage.refinement.local_moves import LocalMoves, Move
from collage.timing.plan_timer import PlanTimer
from collage.timing.request import TimingRequest
from collage.timing.timed_plan import TimedPlan, speedup

MODELS = ("light_inception_v1", "nasnet_mobile")
TARGETS = ("onnxruntime", "openvino")
_ROUNDS = 16


def forks(model: Model, target: Target, count: int, threads: int) -> list[Plan]:
    """Plans with one fork each, at places spread over the model."""
    whole = Plan((Candidate(model.index.all_nodes, target, "whole"),))
    nothing = CandidateSet.build(model.index, [])
    tunable = {target: tunable_options(target, threads)}
    moves = LocalMoves(model.index, nothing, (target,), tunable=tunable, threads=threads)
    places = [int((i + 0.5) * moves.length / count) for i in range(count)]
    made = [moves.apply(whole, Move("fork", place)) for place in places]
    return list(dict.fromkeys(plan for plan in made if plan is not None))


def compare(name: str, text: str, count: int, threads: int) -> str:
    """One line of the table."""
    chosen, target = benchmark_model(name), Target.parse(text)
    target_spec(target)
    with tempfile.TemporaryDirectory(prefix="collage-branches-") as temporary:
        folder = Path(temporary)
        model = Model.open(normalize(chosen.path, folder / "model", dict(chosen.dims)).path)
        outputs = [output for output in model.index.outputs if output in model.index.producer]
        inputs = tuple(model.index.values[value] for value in model.index.inputs)
        reference = Reference(model, [seeded_inputs(name, model)], folder / "reference")
        samples, expected = folder / "samples.npz", folder / "expected.npz"
        write_samples(samples, reference.samples)
        write_samples(expected, reference.values(outputs))
        template = TimingRequest(
            (), {}, inputs, tuple(outputs), samples, expected, error_limit=1e-3, threads=threads
        )
        timer = PlanTimer(RegionFiles(model, folder / "regions"), template, ignore)
        whole = TimedPlan(Plan((Candidate(model.index.all_nodes, target, "whole"),)), "whole")
        made = [
            TimedPlan(plan, f"fork {i}") for i, plan in enumerate(forks(model, target, count, threads))
        ]
        timer.time([whole, *made], rounds=_ROUNDS)
        timed = [entry for entry in made if entry.timed]
        if not whole.timed or not timed:
            why = whole.failure or next((entry.failure for entry in made), "it has no branches")
            return f"| {name} | {text} | {why} | | |"
        best = min(timed, key=lambda entry: entry.ratio)
        gain = speedup(whole, best)
        return (
            f"| {name} | {text} | {whole.latency_us / 1e3:.2f} | {len(timed)} "
            f"| {gain.ratio:.3f} ({gain.low:.3f} to {gain.high:.3f}) |"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", action="append")
    parser.add_argument("--target", action="append")
    parser.add_argument("--forks", type=int, default=6)
    parser.add_argument("--threads", type=int, default=process_policy.default_threads())
    arguments = parser.parse_args()
    print(
        "| model | target | whole, ms | forks timed | best fork is faster by |\n|---|---|--:|--:|--:|"
    )
    for name in arguments.model or MODELS:
        for text in arguments.target or TARGETS:
            print(compare(name, text, arguments.forks, arguments.threads), flush=True)


if __name__ == "__main__":
    main()

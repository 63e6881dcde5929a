"""One contender in a process of its own: it answers blocks of requests with the time of each."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

import collage
from benchmarks.shapes.cases import CASES, Case
from collage.backends.contract import SubModel
from collage.backends.machine.process_policy import default_threads
from collage.backends.numerics.seeded import seeded_inputs
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec
from collage.runtime.by_shape import ByShape, Part, PartedPlan
from collage.runtime.compiled import CompiledRegions
from collage.shapes.classes import Treatment

_KEPT = 1000

Feed = Mapping[str, np.ndarray]


def serve(
    case: Case,
    run: Callable[[Feed], object],
    inputs: Sequence[TensorSpec],
    axes: Sequence[Sequence[int | str]],
) -> None:
    """Answer each line of sizes on stdin with microseconds, and what the process holds.

    Args:
        case: makes inputs, or says nothing of them.
        run: computes all outputs.
        inputs: of the model.
        axes: of each input a size, or the free dimension's name, for each axis.
    """
    for line in sys.stdin:
        spent = []
        for size in json.loads(line):
            specs = [
                TensorSpec(spec.name, spec.dtype, tuple(size if isinstance(d, str) else d for d in own))
                for spec, own in zip(inputs, axes, strict=True)
            ]
            feed = seeded_inputs(specs, size) if case.inputs is None else case.inputs(size)
            begin = time.perf_counter()
            run(feed)
            spent.append((time.perf_counter() - begin) * 1e6)
        status = Path("/proc/self/status").read_text(encoding="ascii")
        peak = next(int(row.split()[1]) for row in status.splitlines() if row.startswith("VmHWM"))
        print(json.dumps({"us": spent, "peak_kib": peak}), flush=True)


def main(name: str, kind: str, path: Path, cache_dir: Path) -> None:
    """Serve as a contender.

    Args:
        name: of the case.
        kind: `ours`, or a target and how it is compiled: `openvino/dynamic`, `openvino/exact`.
        path: the artifact, or the normalized model with a free dimension.
        cache_dir: where artifacts are kept apart.
    """
    model = Model.open(path, mapped=True)
    inputs = [model.index.values[name] for name in model.index.inputs]
    axes = [
        [dim if isinstance(dim, int) else str(dim.value) for dim in value.shape or ()]
        for value in model.ir.graph.inputs
    ]
    if kind == "ours":
        session = collage.load(path, cache_dir=cache_dir)
        serve(CASES[name], lambda feed: session.run(None, feed), inputs, axes)
        return
    target, _, treatment = kind.partition("/")
    outputs = tuple(model.index.values[name] for name in model.index.outputs)
    part = Part(
        "whole", SubModel(path, tuple(inputs), outputs), Target.parse(target), _treatment(treatment)
    )
    compiled = CompiledRegions(default_threads())
    names = [spec.name for spec in outputs]
    single = ByShape(compiled, inputs, names, most_instances=_KEPT, most_copies=_KEPT)
    plan = PartedPlan((part,))
    serve(CASES[name], lambda feed: single.run(plan, feed, names), inputs, axes)


def _treatment(text: str) -> Treatment:
    return "exact" if text == "exact" else "dynamic"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(Path, sys.argv[3:]))

"""How well a runtime's own profile of the whole model predicts the latency of its partitions.

Each target runs the whole model once under its profiler, as the tuner does. The estimates of
`collage.costs.estimates` from that profile are compared with the measured latency of each partition.
The tuner uses estimates only to choose the next measurement, so their order matters.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.prediction.plans import Part, choose_cuts
from collage.backends.contract import SubModel
from collage.backends.machine.process_policy import default_threads
from collage.backends.measurement.measure import measure
from collage.backends.measurement.protocol import Protocol
from collage.backends.measurement.request import MeasureRequest
from collage.backends.registry import canonical
from collage.costs.estimates import Estimates, node_times_us
from collage.partitioner.cost import Measured
from collage.partitioner.graph.linear_order import line
from collage.partitioner.graph.model import Model
from collage.partitioner.target import Target


def estimate_parts(
    folder: Path, facts: Mapping[str, Any], parts: Sequence[Part], protocol: Protocol
) -> tuple[dict[str, float], dict[str, float]]:
    """Estimate parts from profiles of the whole model.

    Args:
        folder: what `benchmarks.prediction` prepared.
        facts: of the model.
        parts: what to estimate.
        protocol: how the whole model is timed.

    Returns:
        By the part's name its estimate in microseconds, and by target the share of the profiled time
        that could not be mapped to nodes. Targets that do not run the whole model are left out.
    """
    model = Model.open(folder / "model" / "model.onnx")
    index = model.index
    whole = SubModel(
        model.path,
        tuple(index.values[name] for name in index.inputs),
        tuple(index.values[name] for name in facts["outputs"]),
    )
    estimates = Estimates(index)
    unmapped: dict[str, float] = {}
    for target in sorted({target for _, _, target in parts}):
        request = MeasureRequest(
            target=canonical(Target.parse(target), default_threads()),
            model=whole,
            inputs_path=folder / "samples.npz",
            expected_path=folder / "expected.npz",
            tolerance=1e-2,
            threads=default_threads(),
            protocol=replace(protocol, retries=0, max_s=0.3),
            profile=True,
            cache_dir=folder / "compiled",
        )
        found = measure(request)
        if not isinstance(found.cost, Measured) or not found.ops:
            continue
        times, unmapped[target] = node_times_us(
            index, index.all_nodes, found.cost.latency_us, found.ops
        )
        estimates.learn(Target.parse(target), times)
    laid, cuts = line(index, index.all_nodes), choose_cuts(model)
    return {
        f"{start}-{end} {target}": estimates.bound_us(
            laid.run(cuts[start], cuts[end]), Target.parse(target)
        )
        for start, end, target in parts
        if target in unmapped
    }, unmapped


def rank_correlation(estimated: Mapping[str, float], measured: Mapping[str, float]) -> float:
    """Kendall's τ of estimates against measured times, over the parts that have both."""
    shared = sorted(estimated.keys() & measured.keys())
    pairs = list(itertools.combinations(shared, 2))
    agreeing = sum((estimated[a] > estimated[b]) == (measured[a] > measured[b]) for a, b in pairs)
    return 2 * agreeing / len(pairs) - 1 if pairs else float("nan")

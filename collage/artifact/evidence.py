"""What a finished plan gets for its way: reference values to prove itself by, and versions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib.metadata import version

from collage.artifact.artifact import crossing_values, make_verification
from collage.artifact.verification import Verification
from collage.artifact.verify import observe_errors
from collage.backends.numerics.reference import table_bounds
from collage.backends.sandbox.run import ChildFailed
from collage.model.preparation import PreparedPlan
from collage.model.reference import Reference
from collage.partitioner.candidate import Plan
from collage.partitioner.errors import NoPlanError
from collage.runner import Runner


def verify_plan(
    final: PreparedPlan,
    reference: Reference,
    seeds: Sequence[int],
    tolerance: float,
    threads: int,
    runner: Runner,
    cancel: threading.Event | None = None,
) -> Verification:
    """Reference values for `load`, with the errors that the plan shows when it is compiled afresh.

    They are those of the model as it is emitted: int8 is compared with int8, computed without fusing.

    Args:
        final: the plan on the model as it is emitted.
        reference: of the model before partitions were rewritten, on seeded inputs.
        seeds: of these inputs.
        tolerance: allowed for every value.
        threads: of one call.
        runner: where it is compiled.
        cancel: stops the child.

    Raises:
        NoPlanError: it cannot be compiled once more.
        CancelledError: `cancel` was set.
    """
    plan, regions, model = final.plan, final.regions, final.model
    if model is not reference.model:
        reference = Reference(
            model, reference.samples, model.path.parent / "own", cancel=cancel, keep_all=False
        )
    bounds = table_bounds(model.index)
    values = reference.expected(crossing_values(model, plan), last=True)
    kept = make_verification(seeds, reference.samples, values, {}, tolerance, bounds)
    inputs = tuple(model.index.values[name] for name in model.index.inputs)
    steps = tuple((regions.get(p.nodes), p.target) for p in plan.partitions)
    try:
        observed = runner.run(observe_errors, steps, kept.to_text(), inputs, threads, cancel=cancel)
    except ChildFailed as failure:
        raise NoPlanError(f"the plan failed when it was compiled once more: {failure.reason}") from None
    return make_verification(seeds, reference.samples, values, observed, tolerance, bounds)


def versions_of(plan: Plan, runner: Runner) -> dict[str, str]:
    """Versions of this program and of the runtimes that a plan uses on a runner."""
    versions = {"collage": version("collage-tuner")}
    for target in plan.targets:
        versions[target.backend] = runner.facts(target).version
    return versions

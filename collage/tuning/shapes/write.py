"""The artifact of a model with free dimensions: the plan of each class, with reference values at each shape."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from collage.artifact.artifact import REPORT_KEY, crossing_values
from collage.artifact.emit import TuneResult, verify_plan, versions_of
from collage.backends.sandbox.run import ChildFailed
from collage.model.preparation import PreparedPlan, note_of
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.emit.annotate import annotate, read_plan
from collage.partitioner.emit.plan_json import encode_plan
from collage.partitioner.graph.model import Model
from collage.shapes.classes import SHAPES_KEY, Proof, ServedShapes, ShapeClass, TreatedPlan, axes_of
from collage.shapes.space import ShapeSpace
from collage.shapes.traffic import MOST_KEPT
from collage.timing.compiling import resident_bytes
from collage.tuning.run import Run, TuneRequest
from collage.tuning.shapes.at_shape import AtShape
from collage.tuning.shapes.choice import ChosenClass
from collage.tuning.shapes.hot import hot_plan
from collage.tuning.shapes.report import ShapeFindings, shaped_report


def write(
    request: TuneRequest,
    run: Run,
    *,
    free: Model,
    space: ShapeSpace,
    timed: Sequence[AtShape],
    classes: Sequence[ChosenClass],
    main: int,
    found: Mapping[str, Any],
) -> TuneResult:
    """Write the artifact with its report.

    Args:
        request: what the caller asked for.
        run: what the stages run with.
        free: the model with free dimensions.
        space: its sizes.
        timed: its representative shapes.
        classes: their plans.
        main: the shape that was searched at.
        found: the report of that search.

    Raises:
        NoPlanError: a plan cannot be compiled once more.
    """
    regions = RegionFiles(free, run.work_dir / "emit")
    hot = [hot_plan(run, regions, timed, one) for one in classes]
    known = ShapeFindings(timed, classes, hot, main, _rss_bytes(run, regions, timed, classes))
    of_shape = known.class_of_shape
    proofs = []
    for i, at in enumerate(timed):
        warm = hot[of_shape[i]]
        proofs.append(
            Proof(
                dict(at.bound.shape.sizes),
                _proof(run, at, classes[of_shape[i]].plan, regions),
                None if warm is None else _proof(run, at, warm.plan, at.exact),
            )
        )
    plans = [one.plan for one in classes] + [one.plan for one in hot if one is not None]
    served = ServedShapes(
        space=space,
        axes=axes_of(free),
        data_dependent=data_dependent(free, timed, plans),
        classes=tuple(
            ShapeClass(
                up_to=one.up_to,
                plan=_treated(free, one.plan, "dynamic"),
                hot=None if warm is None else _treated(free, warm.plan, "exact"),
                hot_from=0 if warm is None else warm.hot_from,
            )
            for one, warm in zip(classes, hot, strict=True)
        ),
        proofs=tuple(proofs),
        most_copies=MOST_KEPT,
    )
    report = shaped_report(run, known, found, served)
    plan = classes[of_shape[main]].plan
    path = run.work_dir / "artifact" / request.artifact_name
    annotate(
        free,
        plan,
        {REPORT_KEY: json.dumps(report), SHAPES_KEY: served.to_text()},
        path,
        latency_us=[part["latency_us"] for part in report["partitions"]],
        versions=versions_of(plan, run.runner),
        notes=_notes(run, plan),
    )
    return TuneResult(path, report, json.loads(read_plan(path).text))


def _rss_bytes(
    run: Run, regions: RegionFiles, timed: Sequence[AtShape], classes: Sequence[ChosenClass]
) -> dict[str, int]:
    """What a process holds that ran all shapes: by the plans of all classes, and by each single target."""
    plans = {"ours": [one.plan for one in classes]}
    for target, (free, _) in timed[0].singles().items():
        if all(at.find(free.plan, at.dynamic) is not None for at in timed):
            plans[str(target)] = [free.plan]
    model = regions.model.index
    found = {}
    for name, own in plans.items():
        parts = [
            [(regions.get(partition.nodes), partition.target) for partition in plan.partitions]
            for plan in own
        ]
        try:
            found[name] = run.runner.run(
                resident_bytes,
                parts,
                [model.values[value] for value in model.inputs],
                [at.sampling.chosen_by.samples[0] for at in timed],
                timed[0].sampling.threads,
                cancel=run.cancel,
            )
        except ChildFailed:
            continue
    return found


def _proof(run: Run, at: AtShape, plan: Plan, regions: RegionFiles) -> str:
    final = PreparedPlan(at.bound.model, plan, tuple(_notes(run, plan)), regions)
    samples = at.sampling.proof()
    is_seeded = samples is at.sampling.seeded
    proof, _ = verify_plan(
        final=final,
        reference=samples,
        seeds=at.sampling.seeds if is_seeded else range(len(samples.samples)),
        tolerance=at.tolerance,
        threads=at.sampling.threads,
        runner=run.runner,
        cancel=run.cancel,
        keep_inputs=not is_seeded,
    )
    return proof.to_text()


def _notes(run: Run, plan: Plan) -> list[Any]:
    return [note_of(run.runner.facts(partition.target)) for partition in plan.partitions]


def _treated(free: Model, plan: Plan, treatment: Any) -> TreatedPlan:
    return TreatedPlan(encode_plan(free, plan), (treatment,) * len(plan.partitions))


def data_dependent(free: Model, timed: Sequence[AtShape], plans: Sequence[Plan]) -> tuple[str, ...]:
    """Values between partitions, and outputs, whose shape does not follow from the sizes."""
    crossing = dict.fromkeys(name for plan in plans for name in crossing_values(free, plan))
    return tuple(
        name
        for name in crossing
        if not all(at.bound.model.index.values[name].is_static for at in timed)
    )

"""The artifact of a model with free dimensions: the plan of each class, with reference values at each shape."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from collage.artifact.artifact import REPORT_KEY
from collage.artifact.emit import TuneResult, verify_plan, versions_of
from collage.model.free_regions import FreeRegions
from collage.model.preparation import PreparedPlan, note_of
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.emit.annotate import SOURCE_PLAN_KEY, annotate, read_plan
from collage.partitioner.emit.plan_json import encode_plan
from collage.partitioner.graph.model import Model
from collage.shapes.classes import SHAPES_KEY, Proof, ServedShapes, ShapeClass, TreatedPlan, axes_of
from collage.shapes.space import ShapeSpace
from collage.shapes.traffic import Traffic
from collage.tuning.closing import Closing
from collage.tuning.run import Run, TuneRequest
from collage.tuning.shapes.at_shape import AtShape, data_dependent
from collage.tuning.shapes.buckets import bucket_plan, paddable
from collage.tuning.shapes.choice import ChosenClass
from collage.tuning.shapes.emitted import Emitted, emitted
from collage.tuning.shapes.evaluate import Judge
from collage.tuning.shapes.hot import HotPlan, hot_plan
from collage.tuning.shapes.memory import fit_memory
from collage.tuning.shapes.report import ShapeFindings, shaped_report

_MIB = 1 << 20


def write(
    request: TuneRequest,
    closing: Closing,
    *,
    regions: FreeRegions,
    space: ShapeSpace,
    traffic: Traffic,
    timed: Sequence[AtShape],
    classes: Sequence[ChosenClass],
    judge: Judge | None,
    main: int,
    found: Mapping[str, Any],
) -> TuneResult:
    """Write the artifact with its report.

    Args:
        request: what the caller asked for.
        closing: the time that is left.
        regions: sub-models of the model with free dimensions.
        space: its sizes.
        traffic: the shapes of requests.
        timed: its representative shapes.
        classes: their plans.
        judge: says whether other plans than these may be returned; None where all may.
        main: the shape that was searched at.
        found: the report of that search.

    Raises:
        NoPlanError: a plan cannot be compiled once more, or none is within the limit of memory.
    """
    run, free = closing.run, regions.model
    limit_mib = request.options.memory_limit_mib
    fitted = fit_memory(
        closing,
        regions,
        timed,
        classes,
        _hot_plans(request, closing, regions, space, traffic, timed, classes, judge),
        None if limit_mib is None else int(limit_mib * _MIB),
        None if judge is None else judge.refusal,
    )
    classes, hot = fitted.classes, fitted.hot
    if judge is not None:
        found = {**found, **judge.findings, "warnings": [*found["warnings"], *judge.warnings]}
    found = {**found, "warnings": [*found["warnings"], *closing.warnings()]}
    known = ShapeFindings(timed, fitted, main)
    of_shape = known.class_of_shape
    held = emitted(regions, classes[0].plan, run.work_dir / "emitted")
    proofs = []
    for i, at in enumerate(timed):
        warm = hot[of_shape[i]]
        bound, exact = held.at(at, run.work_dir / f"shape-{i}" / "emitted", run.cancel)
        proofs.append(
            Proof(
                dict(at.bound.shape.sizes),
                _proof(run, at, _prepared(run, held, classes[of_shape[i]].plan, bound, held.regions)),
                # A padded plan is compared with the other one at its first request instead.
                None
                if warm is None or warm.padding
                else _proof(run, at, _prepared(run, held, warm.plan, bound, exact)),
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
                plan=_treated(run, held, one.plan, "dynamic"),
                hot=None
                if warm is None
                else _treated(run, held, warm.plan, "bucket" if warm.padding else "exact"),
                hot_from=0 if warm is None else warm.hot_from,
                padding=None if warm is None else warm.padding,
            )
            for one, warm in zip(classes, hot, strict=True)
        ),
        proofs=tuple(proofs),
        most_copies=fitted.most_copies,
    )
    report = shaped_report(run, known, found, served)
    plan = classes[of_shape[main]].plan
    path = run.work_dir / "artifact" / request.artifact_name
    metadata = {REPORT_KEY: json.dumps(report), SHAPES_KEY: served.to_text()}
    if held.rewritten:
        metadata[SOURCE_PLAN_KEY] = encode_plan(free, plan)
    annotate(
        held.model,
        held.plan(plan),
        metadata,
        path,
        latency_us=[part["latency_us"] for part in report["partitions"]],
        versions=versions_of(plan, run.runner),
        notes=_notes(run, plan),
    )
    return TuneResult(path, report, json.loads(read_plan(path).text))


def _hot_plans(
    request: TuneRequest,
    closing: Closing,
    regions: FreeRegions,
    space: ShapeSpace,
    traffic: Traffic,
    timed: Sequence[AtShape],
    classes: Sequence[ChosenClass],
    judge: Judge | None,
) -> list[HotPlan | None]:
    """Of each class the plan for sizes that come often: padded where that is faster and sizes change, else as they are."""
    free = regions.model
    dims = paddable(free, space, timed, request.options.pad_masks)
    changes, hot = traffic.new_share > 0, []
    for number, one in enumerate(classes):
        alone = hot_plan(closing, regions, timed, one)
        padded = None
        if changes or alone is None:
            may_run = partial(_may_run, judge, one)
            padded = bucket_plan(closing, free, regions, traffic, timed, classes, number, dims, may_run)
        hot.append(padded or alone)
    return hot


def _may_run(judge: Judge | None, one: ChosenClass, plan: Plan) -> bool:
    return judge is None or judge.covers(one, plan)


def _prepared(run: Run, held: Emitted, plan: Plan, bound: Model, regions: RegionFiles) -> PreparedPlan:
    return PreparedPlan(bound, held.plan(plan), tuple(_notes(run, plan)), regions)


def _proof(run: Run, at: AtShape, final: PreparedPlan) -> str:
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


def _treated(run: Run, held: Emitted, plan: Plan, treatment: Any) -> TreatedPlan:
    text = encode_plan(held.model, held.plan(plan), notes=_notes(run, plan) if held.rewritten else None)
    return TreatedPlan(text, (treatment,) * len(plan.partitions))

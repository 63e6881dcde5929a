"""The artifact of a model with free dimensions: the plan of each class, with reference values at each shape."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from collage.artifact.artifact import REPORT_KEY
from collage.artifact.emit import Claim, TuneResult, footprint, verify_plans, versions_of
from collage.model.free_regions import FreeRegions
from collage.model.preparation import PreparedPlan, note_of
from collage.model.reference import Reference
from collage.model.sub_models import RegionFiles
from collage.partitioner.candidate import Plan
from collage.partitioner.emit.annotate import SOURCE_PLAN_KEY, annotate, read_plan
from collage.partitioner.emit.plan_json import encode_plan
from collage.partitioner.graph.model import Model
from collage.shapes.classes import SHAPES_KEY, Proof, ServedShapes, ShapeClass, TreatedPlan, axes_of
from collage.shapes.space import ShapeSpace
from collage.shapes.traffic import Traffic
from collage.tuning.run import Run, TuneRequest
from collage.tuning.shapes.at_shape import AtShape, data_dependent
from collage.tuning.shapes.buckets import bucket_plan, paddable
from collage.tuning.shapes.choice import ChosenClass
from collage.tuning.shapes.emitted import Emitted, emitted
from collage.tuning.shapes.evaluate import Judge
from collage.tuning.shapes.hot import HotPlan, hot_plan
from collage.tuning.shapes.memory import fit_memory
from collage.tuning.shapes.report import ShapeFindings, shaped_report
from collage.tuning.time_left import NO_LIMIT, TimeLeft

_MIB = 1 << 20


def write(
    request: TuneRequest,
    run: Run,
    *,
    regions: FreeRegions,
    space: ShapeSpace,
    traffic: Traffic,
    timed: Sequence[AtShape],
    classes: Sequence[ChosenClass],
    judge: Judge | None,
    main: int,
    found: Mapping[str, Any],
    left: TimeLeft = NO_LIMIT,
) -> TuneResult:
    """Write the artifact with its report.

    Args:
        request: what the caller asked for.
        run: what the stages run with.
        regions: sub-models of the model with free dimensions.
        space: its sizes.
        traffic: the shapes of requests.
        timed: its representative shapes.
        classes: their plans.
        judge: says whether other plans than these may be returned; None where all may.
        main: the shape that was searched at.
        found: the report of that search.
        left: the time of the run.

    Raises:
        NoPlanError: a plan cannot be compiled once more, or none is within the limit of memory.
    """
    free = regions.model
    limit_mib = request.options.memory_limit_mib
    fitted = fit_memory(
        run,
        regions,
        timed,
        classes,
        _hot_plans(request, run, regions, space, traffic, timed, classes, judge, left),
        None if limit_mib is None else int(limit_mib * _MIB),
        None if judge is None else judge.refusal,
        left,
    )
    classes, hot = fitted.classes, fitted.hot
    if judge is not None:
        found = {**found, **judge.findings, "warnings": [*found["warnings"], *judge.warnings]}
    known = ShapeFindings(timed, fitted, main)
    of_shape = known.class_of_shape
    held = emitted(regions, classes[0].plan, run.work_dir / "emitted")
    proofs, took = _proofs(run, known, held)
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
        proofs=proofs,
        most_copies=fitted.most_copies,
    )
    warnings = [*found["warnings"], *left.warnings]
    report = shaped_report(run, known, {**found, "footprint": took, "warnings": warnings}, served)
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
    run: Run,
    regions: FreeRegions,
    space: ShapeSpace,
    traffic: Traffic,
    timed: Sequence[AtShape],
    classes: Sequence[ChosenClass],
    judge: Judge | None,
    left: TimeLeft,
) -> list[HotPlan | None]:
    """Of each class the plan for sizes that come often: padded where that is faster and sizes change, else as they are."""
    free = regions.model
    dims = paddable(free, space, timed, request.options.pad_masks)
    changes, hot = traffic.new_share > 0, []
    for number, one in enumerate(classes):
        alone = hot_plan(run, regions, timed, one, left)
        padded = None
        if changes or alone is None:
            may_run = partial(_may_run, judge, one)
            padded = bucket_plan(
                run, free, regions, traffic, timed, classes, number, dims, may_run, left
            )
        hot.append(padded or alone)
    return hot


def _may_run(judge: Judge | None, one: ChosenClass, plan: Plan) -> bool:
    return judge is None or judge.covers(one, plan)


def _prepared(run: Run, held: Emitted, plan: Plan, bound: Model, regions: RegionFiles) -> PreparedPlan:
    return PreparedPlan(bound, held.plan(plan), tuple(_notes(run, plan)), regions)


def _proofs(run: Run, known: ShapeFindings, held: Emitted) -> tuple[tuple[Proof, ...], dict[str, Any]]:
    """The plans verified at each representative shape, in one process; and what that takes."""
    claims: dict[tuple[int, bool], Claim] = {}
    for i, at in enumerate(known.timed):
        number = known.class_of_shape[i]
        warm = known.hot[number]
        bound, exact = held.at(at, run.work_dir / f"shape-{i}" / "emitted", run.cancel)
        plan, samples = known.classes[number].plan, at.sampling.proof()
        claims[i, False] = _claim(at, samples, _prepared(run, held, plan, bound, held.regions))
        # A padded plan is compared with the other one at its first request instead.
        if warm is not None and not warm.padding:
            claims[i, True] = _claim(at, samples, _prepared(run, held, warm.plan, bound, exact))
    threads = known.timed[0].sampling.threads
    verified = verify_plans(list(claims.values()), threads, run.runner, run.cancel)
    texts = {key: made.to_text() for key, (made, _) in zip(claims, verified, strict=True)}
    seen = [observed for _, observed in verified]
    whole = replace(seen[-1], load_s=sum(observed.load_s for observed in seen))
    proofs = tuple(
        Proof(dict(at.bound.shape.sizes), texts[i, False], texts.get((i, True)))
        for i, at in enumerate(known.timed)
    )
    return proofs, footprint(held.model.path, whole)


def _claim(at: AtShape, samples: Reference, final: PreparedPlan) -> Claim:
    is_seeded = samples is at.sampling.seeded
    seeds = at.sampling.seeds if is_seeded else range(len(samples.samples))
    return Claim(final, samples, seeds, at.tolerance, keep_inputs=not is_seeded)


def _notes(run: Run, plan: Plan) -> list[Any]:
    return [note_of(run.runner.facts(partition.target)) for partition in plan.partitions]


def _treated(run: Run, held: Emitted, plan: Plan, treatment: Any) -> TreatedPlan:
    text = encode_plan(held.model, held.plan(plan), notes=_notes(run, plan) if held.rewritten else None)
    return TreatedPlan(text, (treatment,) * len(plan.partitions))

"""The end of a run: the report and the artifact, of a plan that was just found or was known before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from collage.artifact.emit import TuneResult, emit, versions_of
from collage.cost_db.tunings import TuningRecord
from collage.events import Event
from collage.model.preparation import calibrates
from collage.model.sampling import about_seeded_inputs
from collage.objectives.outcome import unmet
from collage.partitioner.candidate import Plan
from collage.partitioner.emit.plan_json import decode_plan, encode_plan
from collage.partitioner.errors import BadInputError, NoPlanError
from collage.report.alternatives import KnownCosts, whole_model_failures
from collage.report.pareto import front
from collage.report.report import Findings, build_report
from collage.tuning.stages import Form, Prepared, Refined
from collage.tuning.tuning_cache import report_again


def recall(prepared: Prepared, record: TuningRecord) -> TuneResult | None:
    """What the same search found before; None where its plan fails now."""
    run, clock = prepared.run, prepared.run.clock
    report = report_again(record, {**clock.seconds, "total": clock.total_s})
    try:
        if prepared.request.is_part:
            run.listener(Event("measure", f"the plan is known since {report['known_since']}"))
            return _part(prepared, decode_plan(prepared.model, record.plan).plan, report)
        with run.stage("emit", f"known since {report['known_since']}; writing the artifact"):
            plan = decode_plan(prepared.model, record.plan).plan
            return _emit(prepared, plan, report, "the plan was known")
    except (NoPlanError, BadInputError) as error:
        run.listener(Event("emit", f"the known plan fails, so it is searched anew: {error}"))
        return None


def finish(refined: Refined) -> TuneResult:
    """Write the winner's artifact with its report."""
    seconds = {
        **refined.run.clock.seconds,
        "reference": refined.sampling.chosen_by.seconds,
        "end_to_end": refined.timer.seconds,
        "total": refined.run.clock.total_s,
    }
    if refined.request.is_part:
        return _part(refined, refined.plan, build_report(_findings(refined, seconds)))
    winner = refined.winner
    refined.run.clock.expect(refined.emit_s)
    with refined.run.stage("emit", "writing the artifact"):
        report = build_report(_findings(refined, seconds))
        return _emit(refined, refined.plan, report, f"{winner.name} wins", refined.form)


def _part(prepared: Prepared, plan: Plan, report: dict[str, Any]) -> TuneResult:
    """A plan for one of several sizes: it is verified and written with those of the others, so no artifact is there."""
    destination = prepared.run.work_dir / "artifact" / prepared.request.artifact_name
    times = [part["latency_us"] for part in report["partitions"]]
    text = encode_plan(prepared.model, plan, times, versions_of(plan, prepared.run.runner))
    return TuneResult(destination, report, json.loads(text))


def _emit(
    prepared: Prepared, plan: Plan, report: dict[str, Any], said: str, form: Form | None = None
) -> TuneResult:
    run = prepared.run
    written = form or Form(prepared.sampling, prepared.sub_models)
    artifact = emit(
        plan,
        report,
        destination=run.work_dir / "artifact" / prepared.request.artifact_name,
        regions=written.sub_models,
        samples=written.sampling,
        runner=run.runner,
        cancel=run.cancel,
    )
    whole = dict(artifact.report)
    for text in run.about_overrun():
        run.listener(Event("emit", text))
    run.listener(Event("done", said, data={"report": whole}))
    return TuneResult(artifact.path, whole, dict(artifact.plan))


def _findings(refined: Refined, seconds: Mapping[str, float]) -> Findings:
    request, standings, winner = refined.request, refined.comparisons.standings, refined.winner
    known = KnownCosts(
        index=refined.model.index,
        targets=[spec.target for spec in refined.specs],
        candidates=refined.candidates,
        costs=refined.costs,
        estimates=refined.estimates,
        transitions=refined.transitions,
        searched=refined.lazy is not None,
    )
    return Findings(
        model_sha256=refined.model.sha256,
        index=refined.model.index,
        targets=request.targets,
        winner=winner,
        standings=standings,
        infeasible={**whole_model_failures(known), **refined.left_out},
        candidates=refined.candidates,
        unique=refined.costs.unique(refined.candidates.candidates) if known.searched else None,
        counts=refined.costs.counts,
        solution=refined.solution,
        seconds=seconds,
        tolerance=refined.tolerance,
        metric=request.options.metric,
        front=front(refined.model, standings, winner) if request.options.pareto else None,
        learned=refined.advice.told(),
        objective=refined.objective,
        sampled="seeded" if request.inputs is None else "given",
        warnings=_warnings(refined),
        evaluation=refined.evaluation,
        known=known,
        runner=refined.run.runner,
    )


def left_out(refined: Refined) -> list[str]:
    """What did not fit into the time limit, in one line."""
    skipped = refined.timer.skipped
    if not skipped:
        return []
    limit_s = refined.request.whole_limit_s or refined.limit_s
    return [
        f"the time limit of {limit_s:g} s left out: {', '.join(skipped)}; allow more with --time-limit"
    ]


def _warnings(refined: Refined) -> list[str]:
    warnings = [
        *refined.info.warnings,
        *refined.notes,
        *refined.doubts,
        *refined.candidates.notes,
        *refined.single_targets.untried(),
        *refined.sampling.about_outputs(),
        *refined.timer.warnings(),
        *left_out(refined),
        *refined.run.runner.about_waiting(),
        # Of several sizes the whole run tells.
        *([] if refined.request.is_part else refined.run.about_overrun(refined.emit_s)),
        *([refined.ended_early] if refined.ended_early else []),
        *(f"{target} was {reason}" for target, reason in refined.left_out.items()),
        *unmet(refined.objective),
    ]
    if refined.request.inputs is None:
        has_budget = refined.error_limits.has_budget
        warnings += about_seeded_inputs(has_budget, calibrates(refined.facts))
    return warnings

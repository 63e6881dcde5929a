"""From a model and targets to the fastest measured plan, in stages.

Each stage is a function from one frozen value to the next (`collage.tuning.stages`). The model is read and candidates
are proposed. The whole model is measured on each target, and the baselines are timed in turn. The search measures parts
as it needs them, and whole plans are timed until one wins, which is written with its report. Events tell the progress.
The cancel event is looked at between measurements, and stops the child of one that is running.
"""

from __future__ import annotations

import math
import time

from collage.artifact.emit import TuneResult
from collage.deadline import waiting_end_s
from collage.partitioner.errors import BadInputError
from collage.shapes.settle import Settled
from collage.tuning.baselines import measure_single_targets, propose_plans, time_baselines
from collage.tuning.learned import keep_gain
from collage.tuning.objectives.objective import choose_setting
from collage.tuning.prepare import allow, prepare, propose
from collage.tuning.read_model import read_model
from collage.tuning.result import finish, recall
from collage.tuning.run import Run, TuneRequest
from collage.tuning.shapes.tune import tune_shapes
from collage.tuning.solve import evaluate, refine, search
from collage.tuning.stages import Ingested, Prepared, Refined
from collage.tuning.tuning_cache import TuningCache


def run_tuning(request: TuneRequest, run: Run) -> TuneResult:
    """Tune a model.

    Args:
        request: what the caller asked for.
        run: what the stages run with.

    Raises:
        BadInputError: the model, a target or an option cannot be used.
        NoPlanError: no target takes some node, or no plan runs; or the time limit was too short to find any.
        CancelledError: `cancel` was set.
    """
    run = run.telling_time().within(request.options.time_limit_s)
    read = read_model(run, request)
    if isinstance(read, Settled):
        return tune_shapes(request, run, read, tune_one=tune_ingested)
    if request.options.pad_masks:
        raise BadInputError(
            "a mask of padding is for a range of sizes, and here each dimension has one; leave it out"
        )
    if request.options.memory_limit_mib is not None:
        raise BadInputError(
            "a limit of memory is for a range of sizes, and here each dimension has one; leave it out, or give "
            "--objective memory"
        )
    return tune_ingested(read)


def tune_ingested(read: Ingested) -> TuneResult:
    """Tune a model that was read, at its one shape.

    Raises:
        BadInputError, NoPlanError, CancelledError: as `run_tuning`.
    """
    run, request = read.run, read.request
    prepared = prepare(propose(read))
    cache = _cache(prepared)
    if cache is None:
        return finish(_winner(prepared))
    if request.options.fresh:
        return _remembered(cache, prepared)
    begin_s, until_s = time.monotonic(), math.inf
    if request.options.time_limit_s is not None:
        until_s = waiting_end_s(run.clock.begin_s, prepared.limit_s)
    with cache.turn(prepared.limit_s, run.cancel, until_s) as record:
        waited_s = time.monotonic() - begin_s
        known = recall(prepared, record) if record is not None else None
        return known or _remembered(cache, prepared, waited_s)


def _winner(prepared: Prepared, waited_s: float = 0.0) -> Refined:
    """Measure and search; the value with the plan that wins."""
    allowed = allow(prepared, waited_s)
    candidates = allowed.candidates.candidates
    with allowed.run.stage("measure", f"measuring among {len(candidates)} candidates"):
        budgeted = propose_plans(measure_single_targets(allowed))
    refined = refine(search(time_baselines(budgeted)))
    keep_gain(refined)
    return choose_setting(evaluate(refined))


def _remembered(cache: TuningCache, prepared: Prepared, waited_s: float = 0.0) -> TuneResult:
    """Measure and search, write what wins, and remember it."""
    refined = _winner(prepared, waited_s)
    result = finish(refined)
    if refined.form is None:  # a plan with more rows is one for another model
        cache.keep(refined.plan, result.report, prepared.limit_s)
    return result


def _cache(prepared: Prepared) -> TuningCache | None:
    """The tunings known before; None where the plan is timed each time it is asked for.

    That is where nothing is searched, and where the caller's own check decides: its code may change.
    """
    request = prepared.request
    if not request.searches or request.check is not None:
        return None
    return TuningCache(
        database=prepared.run.database,
        model=prepared.model,
        targets=request.targets,
        candidates=prepared.candidates.candidates,
        costs=prepared.costs,
        options=request.options,
        inputs=request.inputs,
        labels=request.labels,
        listener=prepared.run.listener,
    )

"""From a model file to all that measuring needs: the model, its candidates, samples, and what errors are allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from collage.accuracy.error_limits import ErrorLimits
from collage.accuracy.task import TaskProof, task_of
from collage.backends.registry import backend_of, target_spec
from collage.costs.copy_costs import copy_costs
from collage.costs.measured_costs import CostSettings, MeasuredCosts
from collage.costs.measurement_context import protocol_for
from collage.deadline import Deadline
from collage.disk_space import DiskBudget
from collage.events import Event
from collage.model import reference
from collage.model.preparation import calibrates, least_opset
from collage.model.sampling import Sampling
from collage.model.self_error import allow_self_error
from collage.model.sub_models import RegionFiles
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.weights import total_bytes
from collage.partitioner.ingest.normalize import NormalizedInfo
from collage.partitioner.rules.target_spec import enumerate_candidates
from collage.partitioner.target import Target
from collage.search.fixed_plans import check_covered
from collage.tuning.refused_sizes import explained
from collage.tuning.run import Run, TuneRequest, seconds_kept
from collage.tuning.stages import Allowed, Ingested, Prepared, Proposed


def ingest(run: Run, request: TuneRequest, dims: Mapping[str, int]) -> Ingested:
    """Read the model.

    Args:
        dims: the size of each free dimension.

    Raises:
        BadInputError: the model or a target cannot be used.
        OutOfTimeError: the model was not read in time.
    """
    facts = run.runner.check(request.targets)
    with run.stage("ingest", "reading the model"):
        model, info = reference.ingest(
            request.source,
            run.work_dir,
            dims,
            run.cancel,
            least_opset(facts),
            until_s=run.prepared_by_s,
        )
    return ingested(run, request, model, info)


def ingested(run: Run, request: TuneRequest, model: Model, info: NormalizedInfo) -> Ingested:
    """The first value of a run, of a model that was read.

    Raises:
        BadInputError: a target cannot be used.
    """
    threads = request.options.threads or run.runner.threads
    options = request.options.model_copy(update={"threads": threads})
    limit_s = options.limit_s(total_bytes(model.ir.graph.initializers.values()))
    run.clock.expect(limit_s)
    targets = _with_exact_forms(run, request.targets, model)
    read = {"normalized_sha256": model.sha256}
    run.listener(Event("ingest", f"read the model: {len(model.index.nodes)} nodes", data=read))
    return Ingested(
        run=run,
        request=replace(request, options=options, targets=targets),
        facts=run.runner.check(targets),
        model=model,
        info=info,
        limit_s=limit_s,
    )


def _with_exact_forms(run: Run, targets: Sequence[Target], model: Model) -> tuple[Target, ...]:
    """The targets, and exact forms of those that may compute wrong values of this model on this processor."""
    features = run.runner.hardware.features
    found = [
        form
        for t in targets
        for form in backend_of(t).exact_forms(t, model.index, features)
        if form not in targets
    ]
    if found:
        named = ", ".join(map(str, found))
        run.listener(
            Event(
                "ingest",
                f"compared too: {named}, since without that option values may be wrong on this processor",
            )
        )
    return (*targets, *found)


def propose(ingested: Ingested) -> Proposed:
    """Enumerate candidates, and see that they and the caller's constraints leave a plan.

    Raises:
        BadInputError: a pin, a ban or a limit cannot be kept.
        NoPlanError: no target takes some node.
    """
    model, targets = ingested.model, ingested.request.targets
    with ingested.run.stage("candidates", "enumerating candidates"):
        specs = tuple(target_spec(target) for target in targets)
        candidates = enumerate_candidates(model, specs)
        check_covered(model.index, candidates, targets)
        constraints = ingested.request.options.constraints()
        domains = {spec.target: spec.memory_domain for spec in specs}
        constraints.check(model.index, targets, candidates.refusals, domains)
    return Proposed(**vars(ingested), specs=specs, candidates=candidates, constraints=constraints)


def prepare(proposed: Proposed) -> Prepared:
    """Make samples and their reference values, and open the cost database for this model.

    Raises:
        BadInputError: the model cannot run on the samples, or these do not fit.
        OutOfTimeError: the reference was not computed in time.
    """
    run, request, model = proposed.run, proposed.request, proposed.model
    sampling = _sampling(proposed)
    with explained(request, run.prepared_by_s):
        sampling.check_reference()
    sub_models = RegionFiles(
        model,
        run.work_dir / "regions",
        sampling.chosen_by.values if calibrates(proposed.facts) else None,
        disk_budget=DiskBudget.for_model(model.path, sampling.cache_dir),
    )
    settings = CostSettings(
        sampling.threads,
        protocol=protocol_for(model, run.runner.hardware),
        cache_dir=sampling.cache_dir,
    )
    costs = MeasuredCosts(
        model,
        sub_models,
        sampling.chosen_by,
        run.database,
        settings,
        run.runner,
        run.listener,
        run.cancel,
    )
    task = task_of(request.options, sampling, request.inputs, request.labels)
    if task is not None:  # labels that do not fit are told before anything is measured
        TaskProof(task)
    return Prepared(**vars(proposed), sampling=sampling, sub_models=sub_models, costs=costs, task=task)


def _sampling(proposed: Proposed) -> Sampling:
    """The inputs of the run; those that are known already, unless more are to be held out."""
    run, request = proposed.run, proposed.request
    hold_out = ErrorLimits.of(request.options, request.check is not None).has_budget
    if proposed.sampled is not None and not hold_out:
        return proposed.sampled.with_options(request.options)
    return Sampling(
        model=proposed.model,
        info=proposed.info,
        options=request.options,
        work_dir=run.work_dir,
        inputs=request.inputs,
        hold_out=hold_out,
        listener=run.listener,
        cancel=run.cancel,
        until_s=run.prepared_by_s,
    )


def allow(prepared: Prepared, waited_s: float = 0.0) -> Allowed:
    """Find out what errors are allowed, at least the model's own, and until when to look for plans.

    Args:
        prepared: the run so far.
        waited_s: how long another tuner's search was waited for, which is no searching.
    """
    run, request, sampling = prepared.run, prepared.request, prepared.sampling
    sampling.compute_held_out()
    options, notes = allow_self_error(
        sampling.compared,
        request.options,
        run.work_dir / "own-error",
        run.listener,
        run.cancel,
    )
    error_limits = ErrorLimits.of(options, request.check is not None)
    is_strict = request.options.time_limit_s is not None
    prepared.costs.limit_errors(error_limits.local_limit, error_limits.whole_limit)
    return Allowed(
        **vars(prepared),
        tolerance=options.tolerance,
        error_limits=error_limits,
        notes=notes,
        copies=copy_costs(prepared.specs, sampling.threads, run.runner.run),
        deadline=Deadline.of(
            begin_s=run.clock.begin_s,
            limit_s=prepared.limit_s - seconds_kept(request.options, prepared.limit_s),
            is_strict=is_strict,
            waited_s=waited_s,
        ),
        objective_end_s=run.clock.begin_s + prepared.limit_s + (0.0 if is_strict else waited_s),
    )

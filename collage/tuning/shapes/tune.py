"""One artifact for a range of shapes: tuned at one representative shape, then compared at all.

The model keeps its free dimensions, and each representative shape is a copy of it with sizes. So a plan that is found at
one shape is a plan for all, and its partitions are timed at the others, compiled in each way that takes them.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from collage.accuracy.error_limits import ErrorLimits
from collage.artifact.emit import TuneResult
from collage.backends.registry import resolve
from collage.events import Event
from collage.model import reference
from collage.model.free_regions import FreeRegions, form_of
from collage.model.preparation import calibrates, least_opset
from collage.model.sampling import Sampling
from collage.model.sub_models import Values
from collage.options import GivenPlan
from collage.partitioner.candidate import Plan
from collage.partitioner.emit.plan_json import decode_plan, encode_plan
from collage.partitioner.errors import BadInputError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import NormalizedInfo
from collage.partitioner.target import HOST_MEMORY
from collage.search.fixed_plans import given_plan
from collage.shapes.settle import Settled
from collage.shapes.space import Shape, ShapeSpace
from collage.shapes.traffic import Traffic
from collage.tuning.prepare import ingested
from collage.tuning.run import Run, TuneRequest
from collage.tuning.shapes.at_shape import AtShape, at_shape, plans_to_time
from collage.tuning.shapes.changing import proven_by_changing
from collage.tuning.shapes.choice import choose_classes
from collage.tuning.shapes.evaluate import (
    Choice,
    ClassesSession,
    Judge,
    check_of,
    evaluated,
)
from collage.tuning.shapes.expected import Expected, fastest_first
from collage.tuning.shapes.samples import (
    BoundShape,
    GivenSamples,
    SampledShape,
    about_samples,
    about_shapes,
    in_order,
    main_shape,
    needed_shapes,
    read_shapes,
)
from collage.tuning.shapes.write import write
from collage.tuning.stages import Ingested
from collage.tuning.time_left import TimeLeft

# Of a time limit, what is for the search at one shape. Without a limit all shapes together take so many times as long as
# that search, and each at least so many seconds.
_SEARCH_SHARE, _SHAPES_SHARE, _LEAST_S = 0.4, 1.0, 2.0
# A search takes as long as so many runs of the reference at the least.
_SEARCH_RUNS = 3
# Without a limit the run takes so many times as long as the shapes until it is over, at the most.
_REST = 2.0
# Kept for writing the artifact, beside what verifying it takes.
_WRITING_S = 2.0
# So many plans that err less than the one that a search found are compared at all shapes.
_MORE_EXACT = 3


def tune_shapes(
    request: TuneRequest, run: Run, settled: Settled, tune_one: Callable[[Ingested], TuneResult]
) -> TuneResult:
    """Tune a model for a range of shapes.

    Args:
        request: what the caller asked for.
        run: what the stages run with.
        settled: the sizes of all dimensions, of which some have several.
        tune_one: tunes a model at one shape.

    Raises:
        BadInputError: the model, a target or an option cannot be used, or a size is one that the model cannot have.
        NoPlanError: no target runs the model with free dimensions.
        CancelledError: `cancel` was set.
    """
    _refuse_options(request, settled)
    plain = _unchecked(request)
    free, info, space = _read(request, run, settled.space)
    _check_masks(request, free, space)
    only = _given(request, free)
    info = replace(info, warnings=(*settled.notes, *info.warnings))
    begin_s = time.monotonic()
    with run.stage("ingest", f"binding {len(space.shapes)} shapes"):
        given = GivenSamples(request.inputs, free, space, request.options.evaluate is not None)
        every = space.shapes
        sampled = read_shapes(run, plain, free, space, given)
    read_s = (time.monotonic() - begin_s) / len(sampled)
    space = space.fewer([own.bound.shape for own in sampled])
    bound = [replace(own.bound, shape=shape) for own, shape in zip(sampled, space.shapes, strict=True)]
    samplings = [own.sampling for own in sampled]
    told = [*about_shapes(bound, every), *(about_samples(sampled) if request.inputs else ())]
    info = replace(info, warnings=(*info.warnings, *told))
    left = TimeLeft(run.clock.begin_s, request.options.time_limit_s, partial(_say, run))
    main = main_shape(space.shapes)
    if _is_late(run, request, samplings[main]):
        left.tell(f"the search at {bound[main].text}")
        main = in_order(space.shapes)[0]
    run.listener(Event("search", f"searching at {bound[main].text}"))
    check = check_of(run, request, free, given)
    wanted = (
        _with_front(plain, check is not None) if only is None else _with_plan(plain, bound[main], only)
    )
    at_main = replace(_for_one(wanted), inputs=samplings[main].inputs)
    result = tune_one(replace(_at_one(at_main, run, bound[main], info), sampled=samplings[main]))
    plans = plans_to_time(bound[main].model, request.targets, _found(bound[main].model, result))
    regions = _regions(request, run, free, samplings)
    with run.stage("measure", "rewriting partitions for all sizes"):
        limit_s = request.options.time_limit_s
        until_s = math.inf if limit_s is None else run.clock.begin_s + limit_s
        regions.rewrite((plan for _, plan in plans), until_s)
    end_s = _end_s(run, request.options.time_limit_s)
    rest_s = (
        _REST * (end_s - time.monotonic()) if request.options.time_limit_s is None else left.seconds
    )
    run.clock.expect(rest_s)
    measured = _measured(
        request, run, sampled, bound, regions, plans, result.report, left, end_s, read_s, only
    )
    space = space.fewer([space.shapes[i] for i in measured])
    timed, main = list(measured.values()), list(measured).index(main)
    for at, shape in zip(timed, space.shapes, strict=True):
        at.bound = replace(at.bound, shape=shape)  # its weight has grown where others are left out
    with run.stage("end_to_end", "timing plans at sizes that change"):
        traffic = Traffic(space.dims, settled.seen, _repeated(request))

        def choose() -> Choice:
            left_s = max(_LEAST_S, end_s - time.monotonic())
            return proven_by_changing(run, regions, traffic, timed, choose_classes(timed), left_s, left)

        session = partial(ClassesSession, run, regions, space, timed)
        judge = None if check is None else Judge(check, timed, choose, session).beside_exact()
        classes, note = choose() if judge is None else evaluated(judge)
    told = [*result.report["warnings"], *([] if note is None else [note])]
    told += [*run.runner.about_waiting(), *run.about_overrun()]
    found_report = {**result.report, "front": None, "warnings": [*dict.fromkeys(told)]}
    with run.stage("emit", "writing the artifact"):
        written = write(
            request,
            run,
            regions=regions,
            space=space,
            traffic=traffic,
            timed=timed,
            classes=classes,
            judge=judge,
            main=main,
            found=found_report,
            left=left,
        )
    for text in run.about_overrun():
        run.listener(Event("emit", text))
    run.listener(Event("done", "the artifact serves its shapes", data={"report": written.report}))
    return written


def _measured(
    request: TuneRequest,
    run: Run,
    sampled: Sequence[SampledShape],
    bound: Sequence[BoundShape],
    regions: FreeRegions,
    plans: Sequence[tuple[str, Plan]],
    report: Mapping[str, Any],
    left: TimeLeft,
    end_s: float,
    read_s: float,
    only: Plan | None,
) -> dict[int, AtShape]:
    """Plans timed at the representative shapes, by position: at those that are needed, and others while there is time.

    Args:
        end_s: when that is to be over.
        read_s: seconds that reading a shape took.
        only: the plan that is to be returned; None where the fastest is.
    """
    needed = needed_shapes([own.shape for own in bound])
    rewritten_s = len(bound) * read_s if any(form_of(plan) for _, plan in plans) else 0.0
    measured: dict[int, AtShape] = {}
    for i in sorted(in_order([own.shape for own in bound]), key=lambda i: i not in needed):
        own, known = bound[i], list(measured.values())
        seconds = max(_LEAST_S, (end_s - time.monotonic()) / (len(bound) - len(known) + 1))
        # What is slow to read is slow to compile.
        plan_s = max((at.plan_s for at in known), default=read_s)
        if i not in needed and left.leaves_out(f"plans at {own.text}", plan_s):
            continue
        with run.stage("end_to_end", f"timing plans at {own.text}"):
            tolerance, sampling = report["tolerance"], sampled[i].sampling
            at = at_shape(run, request, own, sampling, regions, tolerance, seconds, left, only)
            count = len(request.targets) + 1
            if request.options.time_limit_s is not None:
                count = max(1, min(count, int(seconds / plan_s)))
            refusal = partial(_refusal, regions, Expected(known, own))
            at.time(fastest_first(plans, known, report), refusal, count)
        measured[i] = at
        if at.untried:
            left.tell(f"{at.untried} of {len(plans)} plans at {own.text}")
        left.keep(_WRITING_S + 2 * max(at.plan_s for at in measured.values()) + rewritten_s)
    return {i: measured[i] for i in sorted(measured)}


def _is_late(run: Run, request: TuneRequest, sampling: Sampling) -> bool:
    """True when there is no time for a search at a shape, by what the reference took there.

    It never is where partitions are rewritten: int8 that is fitted to small inputs errs more than at other sizes.
    """
    if any(fact.preparation is not None for fact in run.runner.check(request.targets)):
        return False
    limit_s = request.options.time_limit_s
    seconds = run.clock.total_s + _SEARCH_RUNS * sampling.chosen_by.seconds
    return limit_s is not None and seconds > _SEARCH_SHARE * limit_s


def _say(run: Run, text: str) -> None:
    run.listener(Event("end_to_end", text))


def _refusal(regions: FreeRegions, expected: Expected, plan: Plan, is_alone: bool) -> str | None:
    """Why a plan is not tried at a shape, or None."""
    return regions.refusal(plan) or expected.refusal(plan, is_alone)


def _regions(request: TuneRequest, run: Run, free: Model, samplings: Sequence[Sampling]) -> FreeRegions:
    """Sub-models with free dimensions; targets that calibrate see the samples of all shapes."""

    def values(names: Sequence[str]) -> list[Mapping[str, np.ndarray]]:
        return [known for one in samplings for known in one.chosen_by.values(names)]

    calibrate: Values | None = values if calibrates(run.runner.check(request.targets)) else None
    threads = samplings[0].threads
    return FreeRegions(free, run.work_dir / "free", calibrate, run.runner, threads, run.cancel)


def _repeated(request: TuneRequest) -> float | None:
    """The share of requests that repeat a shape, where all shapes that were seen say it."""
    shapes = request.options.shapes
    told = [seen.weight * seen.repeated for seen in shapes if seen.repeated is not None]
    return (
        sum(told) / sum(seen.weight for seen in shapes) if told and len(told) == len(shapes) else None
    )


def _unchecked(request: TuneRequest) -> TuneRequest:
    """The request without checks, which are for the plans of all shapes."""
    none = dict.fromkeys(("evaluate", "max_drop", "at_least", "at_most"))
    options = request.options.model_copy(update=none)
    return replace(request, options=options, check=None, labels=None)


def _with_front(request: TuneRequest, is_checked: bool) -> TuneRequest:
    """The request for the front of plans by error too, where there is a budget: at other shapes a plan errs otherwise."""
    if not ErrorLimits.of(request.options, is_checked).has_budget:
        return request
    return replace(request, options=request.options.model_copy(update={"pareto": True}))


def _found(model: Model, result: TuneResult) -> list[Plan]:
    """The plan of a search, and the fastest ones of its front that err less."""
    error = result.report["max_relative_error"] or 0.0
    less = [p["plan"] for p in result.report["front"] or () if p["max_relative_error"] < error]
    return [decode_plan(model, json.dumps(text)).plan for text in (result.plan, *less[-_MORE_EXACT:])]


def _for_one(request: TuneRequest) -> TuneRequest:
    """The request for the shape at which plans are searched: with a part of the time, where that is limited."""
    limit_s = request.options.time_limit_s
    if limit_s is None:
        return replace(request, is_part=True)
    options = request.options.model_copy(update={"time_limit_s": _SEARCH_SHARE * limit_s})
    return replace(request, options=options, whole_limit_s=limit_s, is_part=True)


def _given(request: TuneRequest, free: Model) -> Plan | None:
    """The plan that the caller wants applied to all sizes, or None."""
    given = request.options.plan
    return None if given is None else replace(given_plan(free, given.as_json()), instances=None)


def _with_plan(request: TuneRequest, bound: BoundShape, plan: Plan) -> TuneRequest:
    """The request for a given plan at one shape, where nodes have the same names."""
    text = GivenPlan.model_validate_json(encode_plan(bound.model, plan))
    return replace(request, options=request.options.model_copy(update={"plan": text}))


def _end_s(run: Run, limit_s: float | None) -> float:
    """Until when plans are timed at shapes, as the clock of the run tells it."""
    begin_s, now_s = run.clock.begin_s, time.monotonic()
    return now_s + _SHAPES_SHARE * (now_s - begin_s) if limit_s is None else begin_s + limit_s


def _refuse_options(request: TuneRequest, settled: Settled) -> None:
    """Raise for what is made for one shape only."""
    one = settled.usual_flags
    if (objective := request.options.objective) != "latency":
        raise BadInputError(
            f"settings for the objective {objective} are measured at one size of each dimension: give it, as {one}, or "
            "tune for latency and run several requests at once with load(path, instances=N)"
        )
    if request.options.pareto:
        raise BadInputError(
            "a front is found at one shape, since errors and times of plans rank otherwise at another: give each "
            "dimension one size with --dim, or leave --pareto out and bound the error with --tolerance"
        )
    for target in request.targets:
        backend = resolve(target)
        if backend.memory_domain(target) != HOST_MEMORY:
            raise BadInputError(
                f"{target} computes in memory of a device, which is planned for one shape: give each dimension one "
                "size with --dim, or leave this target out"
            )


def _check_masks(request: TuneRequest, free: Model, space: ShapeSpace) -> None:
    """Raise for a mask that is no input, or whose dimension is not a free one of it."""
    axes = {value.name: [str(dim) for dim in value.shape or ()] for value in free.ir.graph.inputs}
    for dim, name in request.options.pad_masks.items():
        if dim not in space.dims:
            known = ", ".join(space.dims)
            raise BadInputError(f"--pad-mask {dim}={name}: {dim} has not several sizes; {known} has")
        if dim not in axes.get(name, ()):
            fit = [own for own, dims in axes.items() if dim in dims]
            raise BadInputError(
                f"--pad-mask {dim}={name}: {name} is no input with the dimension {dim}; these are: {', '.join(map(str, fit))}"
            )


def _read(
    request: TuneRequest, run: Run, space: ShapeSpace
) -> tuple[Model, NormalizedInfo, ShapeSpace]:
    """The model with its free dimensions, and the space of these alone."""
    fixed = {name: dim.low for name, dim in space.dims.items() if dim.is_fixed}
    kept = [name for name in space.dims if name not in fixed]
    opset = least_opset(run.runner.check(request.targets))
    with run.stage("ingest", "reading the model"):
        free, info = reference.ingest(
            request.source, run.work_dir, fixed, run.cancel, opset, kept, run.prepared_by_s
        )
    shapes = [Shape({name: shape.sizes[name] for name in kept}, shape.weight) for shape in space.shapes]
    return free, info, ShapeSpace({name: space.dims[name] for name in kept}, tuple(shapes))


def _at_one(request: TuneRequest, run: Run, bound: BoundShape, info: NormalizedInfo) -> Ingested:
    """The run at one shape, in a folder of its own; it is not over when that is."""

    def listener(event: Event) -> None:
        if event.stage != "done":
            run.listener(event)

    work_dir = run.work_dir / "main"
    work_dir.mkdir()
    told = replace(bound.info, warnings=(*info.warnings, *bound.info.warnings))
    return ingested(replace(run, work_dir=work_dir, listener=listener), request, bound.model, told)

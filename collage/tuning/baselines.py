"""What is known before the search: whole models on each target, mixes within an error budget, and how they compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from collage.accuracy.budget_search import BudgetSearch
from collage.accuracy.evaluation import Evaluation
from collage.accuracy.target_choice import MUCH_SLOWER, choose_targets
from collage.accuracy.task import TaskJudge, TaskProof
from collage.accuracy.task_errors import search_task
from collage.backends.registry import target_spec
from collage.costs.measurement_context import transitions_between
from collage.events import Event
from collage.learning.observe import promised
from collage.partitioner.candidate import Candidate
from collage.partitioner.graph.weights import total_bytes
from collage.partitioner.rules.target_spec import enumerate_candidates
from collage.partitioner.target import Target
from collage.refinement.comparisons import Comparisons
from collage.refinement.exploration import lay_out
from collage.refinement.target_variants import (
    MOST_TRIALS,
    Inspection,
    beside_faster_forms,
    common_forms,
    single_variants,
    worth_mixing,
)
from collage.search.corrections import Corrections
from collage.search.single_targets import SingleTargets, may_take_all
from collage.timing.plan_timer import PlanTimer
from collage.timing.request import expected_plan_s, without_plans
from collage.timing.timed_plan import TimedPlan
from collage.tuning.early_end import early_end, keeping_task, sole_leader
from collage.tuning.learned import advise, observe, without
from collage.tuning.stages import Allowed, Baselines, Budgeted, Timed

Known = TypeVar("Known", bound=Baselines)
Correct = Callable[[Sequence[TimedPlan]], Sequence[TimedPlan]]

_PROBING_SHARE = 0.15  # the most for blocks of targets without a profile
_TRIALS_SHARE = 0.05  # the most for settings of the fastest target
_FORMS_SHARE = 0.2  # the most for whole models rewritten before mixes are made
# Time is kept for so many comparisons of so many plans, which confirm the winner.
_CONFIRMING, _LEAST_PLANS = 1.5, 2
# A plan that is far ahead runs in so many plans' comparisons before it is written.
CHECKING_PLANS = 4
# A target further behind will not be confirmed or written.
_NEAR = 2.0
# A mix is timed beside the best so far.
_FEWEST_MIXED = 2
# Writing an artifact takes so long, and compiling, and so many calls to verify it.
_EMIT_S, _EMIT_CALLS = 2.0, 5
# It copies the weights, at least so fast, or as fast as reading the model did.
_SLOWEST_BYTES_PER_S = 50e6


def measure_single_targets(allowed: Allowed) -> Baselines:
    """Measure the whole model on each target that may take it."""
    index, candidates = allowed.model.index, allowed.candidates
    advice = advise(allowed)
    single_targets = SingleTargets(
        index, allowed.request.targets, allowed.costs, _PROBING_SHARE * allowed.limit_s, advice
    )
    estimates = single_targets.measure(
        candidates,
        deadline=allowed.deadline,
        hopeful=may_take_all(index, allowed.specs, candidates),
        may_win=allowed.keeps,
    )
    plan_s, emit_s = _expected_s(single_targets, allowed)
    confirm_s = _CONFIRMING * _LEAST_PLANS * plan_s
    left_out = single_targets.left_out
    for target, reason in left_out.items():
        allowed.run.listener(Event("measure", f"{target} {reason}"))
    known = replace(
        allowed,
        specs=tuple(spec for spec in allowed.specs if spec.target not in left_out),
        candidates=without(index, candidates, left_out),
        deadline=allowed.deadline.reserving(confirm_s=confirm_s, emit_s=emit_s),
    )
    left_s = max(0.0, known.deadline.left_s) + 2 * confirm_s + emit_s
    known.run.clock.expect(left_s if known.request.searches else confirm_s + emit_s)
    return Baselines(
        **vars(known),
        advice=advice,
        left_out=left_out,
        single_targets=single_targets,
        estimates=estimates,
        transitions=transitions_between(known.specs, allowed.copies),
        plan_s=plan_s,
        emit_s=emit_s,
    )


def _expected_s(single_targets: SingleTargets, allowed: Allowed) -> tuple[float, float]:
    """Seconds of one plan in a comparison, and of writing an artifact, by what whole models took.

    That is of the slowest of the targets that may still win.
    """
    runner, sampling = allowed.run.runner, allowed.sampling
    samples = sum(len(known.samples) for known in sampling.compared)
    limit_s = allowed.request.options.time_limit_s
    known = {target: row for target, row in single_targets.rows().items() if row and row.latency_us}
    least_us = min((row.latency_us or math.inf for row in known.values()), default=0.0)
    plan_s, emit_s = 0.0, _EMIT_S + sampling.proof_s(False)
    for target, row in known.items():
        latency_us, compile_s = row.latency_us or math.inf, row.compile_s or 0.0
        if latency_us > _NEAR * least_us:
            continue
        latency_s = latency_us / 1e6
        # On a busy machine, to start a process takes long as well.
        seen_s = single_targets.seconds.get(target, 0.0)
        formula_s = expected_plan_s(
            compile_s=compile_s, latency_s=latency_s, samples=samples, limit_s=limit_s
        )
        plan_s = max(plan_s, seen_s, formula_s)
        proof_s = sampling.proof_s(runner.facts(target).preparation is not None)
        made_s = max(seen_s, _EMIT_S + compile_s + _EMIT_CALLS * latency_s)
        emit_s = max(emit_s, made_s + proof_s)
    return plan_s, 0.0 if allowed.request.is_part else emit_s + _copying_s(allowed)


def _copying_s(allowed: Allowed) -> float:
    """Seconds that copying the weights into the artifact is expected to take."""
    size = total_bytes(allowed.model.ir.graph.initializers.values())
    return min(size / _SLOWEST_BYTES_PER_S, allowed.run.clock.seconds.get("ingest", math.inf))


def propose_plans(baselines: Baselines) -> Budgeted:
    """Find plans to time before the search: mixes within an error budget, and variants of single targets."""
    run = baselines.run
    inspection = Inspection(baselines.model, run.listener, run.cancel)
    known = _with_common_forms(baselines, inspection)
    budget = _error_budget(known)
    leader = None if budget is None or known.out_of_time else sole_leader(known, budget)
    keeping, too_far = (None, frozenset()) if leader is None else keeping_task(known, leader)
    proposed = []
    if budget is not None and keeping is None:
        proposed += budget.propose(known.error_limits.tolerances)
    if known.request.searches and not known.out_of_time:
        proposed += _variants(known, inspection)
    return Budgeted(**vars(known), budget=budget, proposed=proposed, keeping=keeping, too_far=too_far)


def _with_common_forms(known: Baselines, inspection: Inspection) -> Baselines:
    """The same with rewritten targets beside the given ones, where errors have a budget: mixes are made of targets."""
    if not known.error_limits.has_budget or not known.request.searches or known.out_of_time:
        return known
    latencies_us = known.single_targets.latencies_us()
    limit_us = MUCH_SLOWER * min(known.exact_us(latencies_us).values(), default=math.inf)
    forms = common_forms(
        inspection=inspection,
        targets=[target for target, us in latencies_us.items() if us <= limit_us],
        threads=known.sampling.threads,
        latencies_us=latencies_us,
    )
    fit = len(forms) * known.plan_s <= _FORMS_SHARE * known.limit_s
    return _joined_by(known, forms) if forms and fit else known


def _error_budget(known: Baselines) -> BudgetSearch | None:
    """The search for blocks that may be less exact; None where none may."""
    run, limits = known.run, known.error_limits
    if not limits.has_budget or not known.request.searches:
        return None
    # What whole models err is known in this metric only.
    goal = max(limits.tolerances) if known.request.options.metric == "max" else math.inf
    unused = beside_faster_forms(known.request.targets, known.single_targets.latencies_us())
    rows = {t: row for t, row in known.single_targets.rows().items() if t not in unused}
    chosen = choose_targets(rows, known.estimates, goal)
    for reason in chosen.refused:
        run.listener(Event("accuracy", f"not mixed in: {reason}"))
    if not chosen.reduced:
        return None
    return BudgetSearch(
        model=known.model,
        template=without_plans(known.sampling),
        used_samples=len(known.sampling.chosen_by.samples),
        chosen=chosen,
        estimates=known.estimates,
        listener=run.listener,
        runner=run.runner,
        cancel=run.cancel,
        task=search_task(known.task),
        span_s=(known.deadline.search_s - known.limit_s, known.deadline.search_s),
    )


def _variants(known: Baselines, inspection: Inspection) -> list[TimedPlan]:
    """The whole model on variants of targets that may be faster: on one thread, rewritten, with other settings."""
    return single_variants(
        inspection=inspection,
        targets=known.single_targets.fastest_first(),
        threads=known.sampling.threads,
        latencies_us=known.single_targets.latencies_us(),
        advice=known.advice,
        trials=_trials(known),
    )


def _trials(known: Baselines) -> int:
    """How many settings of the fastest target are tried: as many as take a small share of the time."""
    fit = int(_TRIALS_SHARE * known.limit_s / max(known.plan_s, 1e-3))
    only_latency = not known.error_limits.has_budget and known.request.options.objective == "latency"
    return min(MOST_TRIALS, fit) if only_latency else 0


def time_baselines(budgeted: Budgeted) -> Timed:
    """Time single targets, the greedy plan and the proposed plans in turn, then targets in blocks.

    Variants of targets that are faster than the targets join them here, so that the search uses them.
    """
    timer = _timer(budgeted)
    latencies_us = budgeted.single_targets.latencies_us()
    comparisons = Comparisons.of(
        model=budgeted.model,
        specs=budgeted.specs,
        constraints=budgeted.constraints,
        timer=timer,
        latencies_us=latencies_us,
        deadline=budgeted.deadline,
        first=_fallback(budgeted, latencies_us),
        last=budgeted.too_far,
    )
    if not budgeted.proposed and (not budgeted.request.searches or budgeted.out_of_time):
        if budgeted.request.searches:
            timer.skip("targets in turn before the search")
        corrections = Corrections(single_target_us=latencies_us)
        untimed = Timed(
            **vars(budgeted), timer=timer, comparisons=comparisons, corrections=corrections, blocks=()
        )
        observe(untimed)
        return untimed
    with budgeted.run.stage("end_to_end", "timing the single targets in turn"):
        budget = budgeted.budget
        correct: Correct = budget.correct if budget is not None else lambda entries: ()
        comparisons.open(budgeted.proposed, correct)
        _screen_by_task(budgeted, timer)
        variants = worth_mixing(comparisons.standings.entries, budgeted.request.targets)
        joined = budgeted
        if variants and budget is None and not budgeted.out_of_time:
            joined = _joined_by(budgeted, variants)
            comparisons = comparisons.joined_by(joined.specs, joined.single_targets.latencies_us())
        singles_us, promise, ended_early = _so_far(joined, comparisons)
        if ended_early is not None and joined.single_targets.untried() and not joined.out_of_time:
            # Nobody knows whether these are slower, and time is left.
            joined, comparisons = _with_untried(joined, comparisons)
            singles_us, promise, ended_early = _so_far(joined, comparisons)
        proof, proven = None, None
        leader = comparisons.standings.fastest()
        if ended_early is not None and budget is not None and joined.task is not None and leader:
            # At the end it would be too late to look for another plan.
            proof = TaskProof(joined.task)
            judge = Evaluation(proof, timer, joined.sub_models, joined.sampling)
            proven = leader if judge.passes(leader) else None
            ended_early = ended_early if proven is not None else None
        if ended_early is None and budget is not None and budgeted.keeping is not None:
            if comparisons.fits(_FEWEST_MIXED):
                comparisons.add(budget.propose(budgeted.error_limits.tolerances), correct)
                _screen_by_task(budgeted, timer)
            else:
                timer.skip("mixes within the budget")
        blocks: Sequence[Candidate] = ()
        wholes = [e for e in comparisons.standings.entries if len(e.plan.partitions) == 1]
        if ended_early is not None:
            timer.say(ended_early)
            joined.run.clock.expect(timer.expected_s(CHECKING_PLANS) + joined.emit_s)
        elif joined.request.searches:
            exact_us = joined.exact_us(singles_us)
            comparisons, blocks = lay_out(comparisons, joined.candidates, joined.estimates, exact_us)
    corrections = comparisons.corrected(Corrections(single_target_us=singles_us))
    timed = Timed(
        **vars(joined),
        timer=timer,
        comparisons=comparisons,
        corrections=corrections,
        blocks=blocks,
        promised=promise,
        wholes=wholes,
        ended_early=ended_early,
        proof=proof,
        proven=proven,
    )
    observe(timed)
    return timed


def _fallback(known: Budgeted, latencies_us: Mapping[Target, float]) -> Target | None:
    """The fastest exact target, since all others may fail an evaluation; None where there is none, or nothing is evaluated."""
    if known.task is None and known.request.check is None:
        return None
    exact_us = known.single_targets.within(known.fp32_error, latencies_us)
    return min(exact_us, key=exact_us.__getitem__, default=None)


def _so_far(known: Budgeted, comparisons: Comparisons) -> tuple[dict[Target, float], float, str | None]:
    """By what ran in turn: what whole models take, what the best target for each part would save, why to search nothing."""
    singles_us = known.single_targets.corrected_us(comparisons.singles_us(), known.estimates)
    promise = promised(known.model.index, list(known.estimates.profiles_us().values()))
    searches = known.request.searches
    return singles_us, promise, early_end(known, comparisons, promise) if searches else None


def _with_untried(known: Budgeted, comparisons: Comparisons) -> tuple[Budgeted, Comparisons]:
    """The same after targets that the whole model had no time for were measured in the time left, and ran in turn."""
    before = known.single_targets.latencies_us()
    estimates = known.single_targets.measure(known.candidates, known.deadline, may_win=known.keeps)
    after = known.single_targets.latencies_us()
    late = {target: us for target, us in after.items() if target not in before}
    return replace(known, estimates=estimates), comparisons.joined_late(late)


def _screen_by_task(budgeted: Budgeted, timer: PlanTimer) -> None:
    """Refuse the fastest plans that miss the task on the searched samples, so that no time is spent on their like."""
    if budgeted.task is None or not timer.standings.leaders():
        return
    judge = TaskJudge(budgeted.task, budgeted.task.searched)
    check = Evaluation(judge, timer, budgeted.sub_models, budgeted.sampling)
    winner = timer.standings.winner()
    if [part.target for part in winner.plan.partitions] != [
        budgeted.keeping
    ]:  # that one was asked before
        check.passing(winner)


def _timer(budgeted: Budgeted) -> PlanTimer:
    limits, run = budgeted.error_limits, budgeted.run
    scored = budgeted.task is not None and not budgeted.request.options.pareto
    return PlanTimer(
        budgeted.sub_models,
        without_plans(
            budgeted.sampling,
            limits.error_limit,
            prune=scored or not limits.slower_too,
            # What errs more, the task may refuse.
            sure_error=budgeted.exact_error if scored else math.inf,
        ),
        run.listener,
        cancel=run.cancel,
        eligible=budgeted.keeps,
        tolerance=budgeted.tolerance,
        runner=run.runner,
        plan_s=budgeted.plan_s,
    )


def _joined_by(known: Known, variants: Sequence[Target]) -> Known:
    """The same with variants as targets of their own; their whole models are measured."""
    joining = tuple(map(target_spec, variants))
    specs = (*known.specs, *joining)
    candidates = enumerate_candidates(known.model, joining, known.candidates)
    single_targets = known.single_targets.joined_by(variants)
    return replace(
        known,
        specs=specs,
        candidates=candidates,
        single_targets=single_targets,
        estimates=single_targets.measure(candidates, known.deadline),
        transitions=transitions_between(specs, known.copies),
    )

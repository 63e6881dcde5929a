"""The search, and how each strategy comes to the plan that is returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from collage.accuracy.evaluation import Evaluation, PlanCheck
from collage.accuracy.task import TaskProof
from collage.options import Strategy
from collage.partitioner.candidate import Instances
from collage.partitioner.errors import NoPlanError, OutOfTimeError
from collage.partitioner.search.baselines import priority
from collage.refinement import optuna_study
from collage.refinement.confirmation import BUILDS
from collage.refinement.exploration import explore
from collage.refinement.local_search import LocalSettings
from collage.refinement.refinement import Refinement
from collage.search.fixed_plans import given_plan, pinned_plan, single_plan
from collage.search.lazy_search import LazySearch
from collage.timing.timed_plan import TimedPlan
from collage.tuning.stages import Refined, Searched, Timed

_MOST_LOCAL_S, _LOCAL_SHARE = 20.0, 0.2  # kept for small changes of the best plan
_CONFIRMED_PLANS = 3  # that usually run beside each other when a winner is confirmed


def search(timed: Timed) -> Searched:
    """Find the best plans by measured costs, where the strategy searches."""
    if not timed.request.searches or timed.ended_early is not None or _can_only_check(timed):
        return Searched(**vars(timed))
    constraints, options = timed.constraints, timed.request.options
    if timed.budget is not None:
        goal = timed.tolerance if timed.task is None else timed.error_limits.tolerances[0]
        spent = timed.budget.constraint(timed.candidates.candidates, goal)
        constraints = replace(constraints, budgets=(spent,))
    lazy = LazySearch(
        index=timed.model.index,
        candidates=timed.candidates,
        costs=timed.costs,
        estimates=timed.estimates,
        transitions=timed.transitions,
        constraints=constraints,
        deadline_s=timed.deadline.search_s - _local_s(timed),
        listener=timed.run.listener,
        most_regions=options.most_regions,
        blocks=timed.blocks,
        give_up_s=timed.deadline.give_up_s,
    )
    corrections = timed.corrections
    if timed.budget is None:
        corrections = explore(timed.comparisons, lazy, corrections)
    # What a pin or a limit forbids is no plan to stop at.
    exact = timed.exact_us(corrections.single_target_us).items()
    allowed = {t: us for t, us in exact if timed.keeps(single_plan(timed.model, t))}
    incumbent_us = min(allowed.values(), default=float("inf")) * timed.comparisons.lead(allowed)
    with timed.run.stage("measure", "searching"):
        try:
            solution = lazy.run(options.plans, incumbent_us, corrections)
        except OutOfTimeError as error:
            failed = "; ".join(timed.single_targets.failures())
            said = f"; alone no target can be used: {failed}" if failed else ""
            raise NoPlanError(
                f"{error} (--time-limit){said}{timed.sampling.beyond_comparing()}"
            ) from None
    if lazy.out_of_time:
        timed.timer.skip("the rest of the search")
    corrected = replace(timed, corrections=corrections)
    return Searched(**vars(corrected), lazy=lazy, solution=solution)


def _can_only_check(timed: Timed) -> bool:
    """True when the time is up, and a single target is there to be returned."""
    alone_us = timed.single_targets.latencies_us()
    targets = timed.single_targets.within(timed.tolerance, alone_us)
    fit = any(timed.keeps(single_plan(timed.model, target)) for target in targets)
    if not timed.out_of_time or not fit:
        return False
    timed.timer.skip("the search")
    return True


def _local_s(timed: Timed) -> float:
    """Seconds that are set apart for small changes of the best plan."""
    return min(_MOST_LOCAL_S, _LOCAL_SHARE * timed.limit_s)


def refine(searched: Searched) -> Refined:
    """Time whole plans until the one to return is known.

    Raises:
        NoPlanError: no plan could be run.
    """
    options = searched.request.options
    confirming_s = BUILDS * searched.timer.expected_s(_CONFIRMED_PLANS)
    if searched.lazy is not None:
        rest_s = _local_s(searched) + confirming_s + searched.emit_s
        searched.run.clock.expect(min(rest_s, searched.deadline.end_left_s))
    strategy = _given if options.plan is not None else STRATEGIES[options.strategy]
    with searched.run.stage("end_to_end", "timing whole plans in turn"):
        try:
            winner = strategy(searched, _refinement(searched))
        except NoPlanError as error:
            raise NoPlanError(f"{error}{searched.sampling.beyond_comparing()}") from None
    given = options.plan.instances if options.plan is not None else None
    stated = None if given is None else Instances(**given.model_dump())
    return Refined(**vars(searched), winner=winner, instances=stated)


def _refinement(searched: Searched) -> Refinement:
    run = searched.run
    keep = partial(optuna_study.keep, run.database.connections, searched.model.sha256, run.listener)
    seed = searched.request.options.seed
    return Refinement(
        comparisons=searched.comparisons,
        local=LocalSettings(seconds=_local_s(searched), seed=seed, keep=keep),
    )


def _given(searched: Searched, refinement: Refinement) -> TimedPlan:
    given = searched.request.options.plan
    assert given is not None, "this is the strategy for a given plan"
    plan = given_plan(searched.model, given.as_json())
    return refinement.asked_for(TimedPlan(plan, "given plan"))


def _optimal(searched: Searched, refinement: Refinement) -> TimedPlan:
    if searched.lazy is None or searched.solution is None:
        return refinement.checked()
    plans = searched.request.options.plans
    return refinement.refined(searched.lazy, searched.solution, plans, searched.corrections)


def _greedy(searched: Searched, refinement: Refinement) -> TimedPlan:
    return refinement.asked_for(searched.comparisons.greedy())


def _priority(searched: Searched, refinement: Refinement) -> TimedPlan:
    """Every node on the first target, in the order given, that takes it."""
    plan = priority(searched.model.index, searched.specs, searched.constraints)
    return refinement.asked_for(TimedPlan(plan, "priority"))


def _single(searched: Searched, refinement: Refinement) -> TimedPlan:
    return refinement.best_single()


def _manual(searched: Searched, refinement: Refinement) -> TimedPlan:
    plan = pinned_plan(searched.model, searched.candidates, searched.constraints)
    return refinement.asked_for(TimedPlan(plan, "pinned plan"))


STRATEGIES: Mapping[Strategy, Callable[[Searched, Refinement], TimedPlan]] = {
    "optimal": _optimal,
    "greedy": _greedy,
    "priority": _priority,
    "single": _single,
    "manual": _manual,
}


def evaluate(refined: Refined) -> Refined:
    """Let the caller's own check or a metric decide, where there is one: the fastest plan that passes wins.

    Raises:
        NoPlanError: none passes.
    """
    task = refined.task
    check: PlanCheck | None = (
        refined.request.check if task is None else refined.proof or TaskProof(task)
    )
    if check is None:
        return refined
    with refined.run.stage("evaluate", "evaluating plans, the fastest first"):
        every = Evaluation(check, refined.timer, refined.sub_models, refined.sampling)
        judge = every.beside_exact()
        winner = refined.winner
        passing = winner if winner is refined.proven else judge.passing(winner)
        return replace(refined, judge=judge).returning(passing)

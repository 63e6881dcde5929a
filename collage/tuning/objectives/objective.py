"""The last choice of a tuning that is not for the latency of one request: a plan, its instances and their threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from collage.backends.registry import on_gpus
from collage.backends.sandbox.run import ChildFailed, ChildLimits
from collage.events import Event
from collage.objectives.child import run_trial
from collage.objectives.goal import Goal
from collage.objectives.halving import Tried, best, halve
from collage.objectives.outcome import outcome
from collage.objectives.settings import Setting, joined, settings
from collage.objectives.trial import Trial, TrialRequest
from collage.options import TuneOptions
from collage.partitioner.candidate import Plan
from collage.timing.request import PlanStep, PlanSteps, TimingRequest, without_plans
from collage.timing.timed_plan import TimedPlan, identity
from collage.tuning.objectives.rows import Forms, forms
from collage.tuning.stages import Form, Refined

# A trial that takes so many times as long as its request asks for hangs.
_PATIENCE, _PATIENCE_S = 20.0, 120.0


def goal_of(options: TuneOptions) -> Goal:
    """What a tuning is for."""
    return Goal(
        objective=options.objective,
        p99_us=None if options.p99_ms is None else options.p99_ms * 1e3,
        median_us=None if options.max_latency_ms is None else options.max_latency_ms * 1e3,
    )


def choose_setting(refined: Refined) -> Refined:
    """Measure plans with several requests at once, and return the setting that serves the objective best.

    Where the objective is latency nothing is measured. Where no setting could be, the winner stays as it is.
    """
    goal = goal_of(refined.request.options)
    if goal.objective == "latency":
        return replace(refined, objective=outcome(goal))
    left_s = max(0.0, refined.objective_end_s - time.monotonic())
    refined.run.clock.expect(left_s + refined.emit_s)
    with refined.run.stage("objective", f"measuring requests at once, for {goal.objective}"):
        made = forms(refined, goal)
        asked = settings(
            goal.objective,
            refined.winner,
            _others(refined),
            cores=refined.run.runner.threads,
            most_threads=refined.request.options.threads,
        )
        rows = [count for count in made.by_rows if count > 1]
        tried = halve(
            asked, _measure(refined, made, goal), goal, _fits(refined), partial(joined, rows=rows)
        )
        chosen, returned = _chosen(refined, tried, goal)
        found = outcome(goal, tried, chosen)
    if chosen is None:
        return replace(returned, objective=found)
    returned = replace(returned, notes=[*returned.notes, *_untried(asked, tried)])
    planned = chosen.setting.planned(refined.run.runner.threads)
    form = made.by_rows[planned.rows] if planned.rows > 1 else None
    return replace(returned, instances=planned, objective=found, form=form)


def _untried(asked: Sequence[Setting], tried: Sequence[Tried]) -> list[str]:
    """What to tell where the time did not do for all settings."""
    known = {each.setting.identity for each in tried}
    left = sum(setting.identity not in known for setting in asked)
    if not left:
        return []
    return [
        f"there was no time for {left} of {len(asked)} settings of several requests; allow more with --time-limit"
    ]


def _chosen(refined: Refined, tried: Sequence[Tried], goal: Goal) -> tuple[Tried | None, Refined]:
    """The best setting whose plan may be returned, with that plan; else none, and the winner so far.

    A plan may be returned that can also be timed for one request, and passes the caller's check as the winner did.
    """
    left = list(tried)
    while (chosen := best(left, goal)) is not None:
        entry = _timed(refined, chosen)
        if entry is refined.winner:
            return chosen, refined.counted()
        reason = None if entry is None else _refusal(refined, entry)
        if entry is not None and reason is None:
            return chosen, refined.returning(entry)
        if reason is not None:
            _refuse(tried, chosen.setting.plan, reason)
        left.remove(chosen)
    return None, refined.counted()


def _refusal(refined: Refined, entry: TimedPlan) -> str | None:
    """Why a plan does not pass the caller's check, or None."""
    if refined.judge is None:
        return None
    refined.run.listener(Event("objective", f"evaluating {entry.name}"))
    reason = refined.judge.refusal(entry)
    if reason is not None:
        refined.timer.refuse(entry, reason)
    return reason


def _refuse(tried: Sequence[Tried], plan: Plan, reason: str) -> None:
    """Note that no setting of a plan may be returned."""
    for each in tried:
        if identity(each.setting.plan) == identity(plan):
            each.trials.append(Trial(failure=reason))


def _others(refined: Refined) -> list[TimedPlan]:
    """Plans that may be returned in place of the winner where they pass the caller's check, the fastest first."""
    if not refined.request.searches:
        return []  # the plan is given
    standings = refined.comparisons.standings
    return sorted(filter(standings.may_win, standings.entries), key=standings.ratio)


def _measure(refined: Refined, made: Forms, goal: Goal) -> Callable[[Setting, float], Trial]:
    templates = {
        rows: without_plans(form.sampling, error_limit=refined.tolerance)
        for rows, form in made.by_rows.items()
    }
    run = refined.run
    clients = goal.clients(run.runner.threads)

    def measure(setting: Setting, seconds: float) -> Trial:
        timing = _timing(made.by_rows[setting.rows], templates[setting.rows], setting)
        request = TrialRequest(
            timing, setting.instances, seconds, setting.rows, setting.stages, clients
        )
        gpus = on_gpus(part.target for part in setting.plan.partitions)
        limits = ChildLimits(
            timeout_s=_PATIENCE * seconds + _PATIENCE_S, address_bytes=0 if gpus else None, gpus=gpus
        )
        with run.runner.alone(run.cancel):
            try:
                trial: Trial = run.runner.run(run_trial, request, limits=limits, cancel=run.cancel)
            except ChildFailed as failure:
                trial = Trial(failure=f"{failure.kind}: {failure.reason}")
        run.listener(Event("objective", _told(setting, trial)))
        return trial

    return measure


def _timing(form: Form, template: TimingRequest, setting: Setting) -> TimingRequest:
    regions = {}
    steps = []
    for part in setting.plan.partitions:
        model = form.sub_models.get(part.nodes)
        name = str(model.path.parent)
        regions[name] = model
        steps.append(PlanStep(name, part.target))
    plan = PlanSteps(tuple(steps), setting.plan.lanes)
    return replace(template, plans=(plan,), regions=regions, threads=setting.threads)


def _fits(refined: Refined) -> Callable[[], bool]:
    """Whether one more trial ends in time, by what the trials so far took.

    Writing the artifact compiles and verifies as many instances as the longest trial did.
    """
    begin_s = latest_s = time.monotonic()
    asked, longest_s = 0, 0.0

    def fits() -> bool:
        nonlocal asked, latest_s, longest_s
        now_s = time.monotonic()
        longest_s, latest_s = max(longest_s, now_s - latest_s), now_s
        one_s = (now_s - begin_s) / asked if asked else 0.0
        asked += 1
        last_s = refined.run.written_by_s - refined.emit_s - longest_s
        return now_s + one_s <= min(refined.objective_end_s, last_s)

    return fits


def _timed(refined: Refined, chosen: Tried) -> TimedPlan | None:
    """The chosen plan with its latency for one request; a form of a target that was not timed yet is timed here."""
    plan = chosen.setting.plan
    for entry in (refined.winner, *refined.comparisons.standings.entries):
        if entry.timed and identity(entry.plan) == identity(plan):
            return entry
    entry = TimedPlan(plan, chosen.setting.name)
    refined.comparisons.time([entry], again=[refined.winner], needed=1)
    return entry if entry.timed else None


def _told(setting: Setting, trial: Trial) -> str:
    what = f"{setting.name}, {setting.instances} × {setting.threads} threads"
    what += f", {setting.rows} requests a call" if setting.rows > 1 else ""
    what += f", {len(setting.stages)} stages" if setting.stages else ""
    if trial.failure is not None:
        return f"{what}: {trial.failure}"
    return (
        f"{what}: {trial.throughput:.1f} requests/s, p99 {trial.p99_us / 1e3:.2f} ms, "
        f"{trial.peak_rss_bytes >> 20} MiB"
    )

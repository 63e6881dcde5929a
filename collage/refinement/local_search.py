"""Optuna drives local moves, on measured end-to-end latency of whole plans.

Terms: the *incumbent* is the best plan so far; a *proposal* is a move applied to it; a *screening* times
several proposals beside the incumbent over a few rounds, and whoever looks faster in it runs a *final*
of many rounds against the incumbent.

Optuna is asked for a move (kind, place and what its kind needs: step, unit, target, option) and told the latency of the plan that came
of it relative to the timer's baseline, so that trials of different screenings compare. A move that cannot be
made, or whose plan cannot be run, is told as pruned, which its sampler counts as bad.

Invariants: a proposal becomes the incumbent only when it is clearly faster (`refine.clearly_faster`) over
all rounds that both ran; the same seed and the same times give the same moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import optuna
from optuna.trial import Trial, TrialState

from collage.backends.options import THREADS
from collage.partitioner.candidate import Plan
from collage.partitioner.target import Target
from collage.refinement.local_moves import LocalMoves, Move
from collage.refinement.optuna_study import PLAN
from collage.timing.plan_timer import JUDGING_ROUNDS
from collage.timing.timed_plan import TimedPlan, clearly_faster, speedup

# Of the proposals of a screening so many are those that were asked for first, the others those that promise most.
_HEAT, _UNGUIDED = 4, 2
_SCREENING_ROUNDS = 6
# Who gained so much in a screening runs a comparison however late it is: six rounds do not prove it.
PROMISING = 1.02
# Asks per screening: a choice, as most moves can be made. A screening that so many cannot fill is the last one.
_ASKS = 40
_STEPS = (-4, -2, -1, 1, 2, 4)


class Timed(Protocol):
    """Where plans are timed; `refine.PlanTimer` is one."""

    entries: list[TimedPlan]

    def knows(self, plan: Plan) -> bool:
        """True when this very plan was timed."""

    def hold(
        self,
        newcomers: Sequence[TimedPlan],
        again: Sequence[TimedPlan] = (),
        rounds: int = JUDGING_ROUNDS,
    ) -> None:
        """Time new plans beside the baseline and some known ones."""


@dataclass(frozen=True)
class LocalSettings:
    """How local search is done.

    Args:
        trials: end after so many timed proposals without a gain; 0 leaves local search out.
        seconds: begin no new comparison after this long.
        seed: of the sampler.
        keep: is given the study when all is done.
    """

    trials: int = 24
    seconds: float = 20.0
    seed: int = 0
    keep: Callable[[optuna.Study], None] = lambda study: None


@dataclass
class LocalSearch:
    """One study on one model.

    Args:
        moves: makes the proposals.
        timer: times them.
        settings: how.
        out_of_time: looked at before each comparison.
        promise_us: what a plan would take by what is known of its parts; infinite where that says nothing.
    """

    moves: LocalMoves
    timer: Timed
    settings: LocalSettings
    out_of_time: Callable[[], bool]
    promise_us: Callable[[Plan], float]
    _count: int = field(default=0, init=False)

    def improve(self, incumbent: TimedPlan) -> TimedPlan:
        """The best plan that local moves reach from a timed one; that one itself when none is faster."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=self.settings.seed, n_startup_trials=2 * _HEAT)
        study = optuna.create_study(sampler=sampler, direction="minimize")
        best = incumbent
        idle = 0
        # Few places have a good option: asking at random may not find it, and what is known of parts does not tell.
        options = self.moves.settable(best.plan)
        while idle < self.settings.trials and not self.out_of_time():
            for move in options[:_UNGUIDED]:
                asked = {"kind": move.kind, "where": move.where, "option": _said(move.option)}
                study.enqueue_trial(asked)
            del options[:_UNGUIDED]
            proposals = self._propose(study, best)
            if not proposals:
                break
            idle += len(proposals)
            self.timer.hold([entry for _, entry in proposals], again=[best], rounds=_SCREENING_ROUNDS)
            for trial, entry in proposals:
                _tell(study, trial, entry)
            challenger = self._fastest([entry for _, entry in proposals], best)
            improved = False
            if challenger is not None and (
                not self.out_of_time() or _gain(challenger, best) > PROMISING
            ):
                self.timer.hold([], again=[best, challenger])
                improved = challenger.timed and clearly_faster(challenger, best)
            if improved and challenger is not None:
                best, idle = challenger, 0
                options = self.moves.settable(best.plan)
            elif len(proposals) < _HEAT:
                break  # nearly all that is near was tried, and asking on would take longer than timing
        self.settings.keep(study)
        return best

    def _propose(self, study: optuna.Study, best: TimedPlan) -> list[tuple[Trial, TimedPlan]]:
        """What was asked for first, and what promises most of all that was."""
        found: dict[Plan, tuple[Trial, Move]] = {}
        for _ in range(_ASKS):
            trial = study.ask()
            move = self._move(trial)
            plan = self.moves.apply(best.plan, move)
            if plan is None or plan in found or self.timer.knows(plan):
                study.tell(trial, state=TrialState.PRUNED)
                continue
            found[plan] = trial, move
        ranked = sorted(list(found)[_UNGUIDED:], key=self.promise_us)
        chosen = [*list(found)[:_UNGUIDED], *ranked][:_HEAT]
        proposals = []
        for plan, (trial, move) in found.items():
            if plan not in chosen:
                study.tell(trial, state=TrialState.FAIL)  # says nothing about it
                continue
            self._count += 1
            name = f"local {self._count} ({move.kind})"
            trial.set_user_attr(PLAN, name)
            proposals.append((trial, TimedPlan(plan, name, challenges=best, proposed=True)))
        return proposals

    def _move(self, trial: Trial) -> Move:
        targets = {str(target): target for target in self.moves.targets}
        kind = trial.suggest_categorical("kind", self.moves.kinds)
        where = trial.suggest_int("where", 0, self.moves.length - 1)
        if kind == "fork":
            return Move(kind, where)
        if kind == "option":
            settings = {_said(setting): setting for setting in self.moves.settings}
            option = settings[trial.suggest_categorical("option", list(settings))]
            return Move(kind, where, option=option)
        return Move(
            kind,
            where,
            trial.suggest_categorical("step", _STEPS),
            trial.suggest_categorical("unit", ("cut", "node")),
            targets[trial.suggest_categorical("target", list(targets))],
        )

    @staticmethod
    def _fastest(entries: Sequence[TimedPlan], best: TimedPlan) -> TimedPlan | None:
        """Who was faster than the incumbent in the screening, by the most; None where nobody was."""
        gains = {i: _gain(entry, best) for i, entry in enumerate(entries) if entry.timed}
        fastest = max(gains, key=lambda i: gains[i], default=None)
        return entries[fastest] if fastest is not None and gains[fastest] > 1.0 else None


def _said(setting: tuple[str, str]) -> str:
    return "-{}={}".format(*setting)


def _gain(entry: TimedPlan, best: TimedPlan) -> float:
    return speedup(best, entry).ratio


def _tell(study: optuna.Study, trial: Trial, entry: TimedPlan) -> None:
    if entry.timed:
        study.tell(trial, entry.ratio)
    else:
        trial.set_user_attr("failure", entry.failure)
        study.tell(trial, state=TrialState.PRUNED)


def worth_a_search(entries: Sequence[TimedPlan], best: TimedPlan, targets: Sequence[Target]) -> bool:
    """True where a neighbor may win: the best plan is mixed, or one of other targets is within a tenth."""
    if len(targets) < 2:
        return False
    others = [e.ratio for e in entries if e.timed and _without_threads(e) != _without_threads(best)]
    return len(best.plan.partitions) > 1 or min(others, default=float("inf")) <= best.ratio * 1.1


def _without_threads(entry: TimedPlan) -> set[Target]:
    """A plan's targets; that one is as fast on one thread says nothing of where to mix."""
    return {target.with_options(**{THREADS.name: ""}) for target in entry.plan.targets}

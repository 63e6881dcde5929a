"""Optuna drives local moves, on measured end-to-end latency of whole plans.

Terms: the *incumbent* is the best plan so far; a *proposal* is a move applied to it. A *screening* times several
proposals beside the incumbent over a few rounds. The proposal that looks fastest in it is timed again beside the
incumbent, over many rounds.

Optuna is asked for a move (kind, place and what its kind needs: step, unit, target, option). It is told the latency
of the changed plan relative to the timer's baseline, so that trials of different screenings compare. A move that
cannot be made, or whose plan cannot be run, is told as pruned, which its sampler counts as bad.

Invariants: a proposal becomes the incumbent only when it is clearly faster (`timed_plan.clearly_faster`) over
all rounds that both ran; the same seed and the same times give the same moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import optuna
from optuna.trial import Trial, TrialState

from collage.backends.options import THREADS
from collage.deadline import NO_DEADLINE, Deadline
from collage.partitioner.candidate import Plan
from collage.partitioner.target import Target
from collage.refinement.local_moves import LocalMoves, Move
from collage.refinement.optuna_study import PLAN
from collage.timing.plan_timer import JUDGING_ROUNDS, PlanTimer
from collage.timing.timed_plan import TimedPlan, clearly_faster, speedup

# The proposals of a screening; so many are those that were asked for first, the others those that are the fastest by prediction.
PER_SCREENING, _UNGUIDED = 4, 2
_SCREENING_ROUNDS = 6
# A proposal that gains so much in a screening is timed at length however late it is: six rounds do not prove it.
PROMISING = 1.02
# Asks per screening: a choice, as most moves can be made. A screening that so many cannot fill is the last one.
_ASKS = 40
_STEPS = (-4, -2, -1, 1, 2, 4)


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
        predict_us: what a plan would take by what is known of its parts; infinite where that says nothing.
        deadline: of the timer's comparisons.
    """

    moves: LocalMoves
    timer: PlanTimer
    settings: LocalSettings
    out_of_time: Callable[[], bool]
    predict_us: Callable[[Plan], float]
    deadline: Deadline = NO_DEADLINE
    _count: int = field(default=0, init=False)

    def improve(self, incumbent: TimedPlan) -> TimedPlan:
        """The best plan that local moves reach from a timed one; that one itself when none is faster."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(
            seed=self.settings.seed, n_startup_trials=2 * PER_SCREENING
        )
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
            entries = [entry for _, entry in proposals]
            self._time(entries, again=[best], rounds=_SCREENING_ROUNDS)
            for trial, entry in proposals:
                _tell(study, trial, entry)
            challenger = self._fastest(entries, best)
            improved = False
            if challenger is not None and (
                not self.out_of_time() or _gain(challenger, best) > PROMISING
            ):
                self._time([], again=[best, challenger])
                improved = challenger.timed and clearly_faster(challenger, best)
            if improved and challenger is not None:
                best, idle = challenger, 0
                options = self.moves.settable(best.plan)
            elif len(proposals) < PER_SCREENING:
                break  # nearly all that is near was tried, and asking on would take longer than timing
        self.settings.keep(study)
        return best

    def _time(
        self,
        proposals: Sequence[TimedPlan],
        again: Sequence[TimedPlan],
        rounds: int = JUDGING_ROUNDS,
    ) -> None:
        self.timer.time(proposals, again=again, rounds=rounds, deadline=self.deadline)

    def _propose(self, study: optuna.Study, best: TimedPlan) -> list[tuple[Trial, TimedPlan]]:
        """The moves that were asked for first, and the fastest of all others by prediction."""
        found: dict[Plan, tuple[Trial, Move]] = {}
        for _ in range(_ASKS):
            trial = study.ask()
            move = self._move(trial)
            plan = self.moves.apply(best.plan, move)
            if plan is None or plan in found or self.timer.standings.knows(plan):
                study.tell(trial, state=TrialState.PRUNED)
                continue
            found[plan] = trial, move
        ranked = sorted(list(found)[_UNGUIDED:], key=self.predict_us)
        chosen = [*list(found)[:_UNGUIDED], *ranked][:PER_SCREENING]
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
        """The proposal that was faster than the incumbent in the screening, by the most; None where none was."""
        gains = {i: _gain(entry, best) for i, entry in enumerate(entries) if entry.timed}
        fastest = max(gains, key=lambda i: gains[i], default=None)
        return entries[fastest] if fastest is not None and gains[fastest] > 1.0 else None


def _said(setting: tuple[str, str]) -> str:
    name, value = setting
    return f"-{name}={value}"


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

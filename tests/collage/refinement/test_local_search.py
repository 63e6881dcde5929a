"""The driver on a timer whose costs are stated: no clock, no runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import optuna
import pytest

from collage.cost_db.connections import Connections
from collage.cost_db.database import CostDatabase
from collage.events import Event, ignore
from collage.partitioner.candidate import Candidate, Plan, bits
from collage.partitioner.rules.candidate_set import CandidateSet
from collage.partitioner.target import Target
from collage.refinement import optuna_study
from collage.refinement.local_moves import LocalMoves
from collage.refinement.local_search import LocalSearch, LocalSettings, worth_a_search
from collage.timing.plan_timer import JUDGING_ROUNDS, PlanTimer
from collage.timing.request import PlanTiming
from collage.timing.standings import Standings
from collage.timing.timed_plan import TimedPlan
from tests.partitioner.graphs import text_model

A, B = Target.parse("null"), Target.parse("simulated")
_LENGTH = 12
_STEPS = " ".join(f"v{i} = Relu({f'v{i - 1}' if i else 'x'})" for i in range(_LENGTH))
INDEX = text_model(f"g (float[4] x) => (float[4] v{_LENGTH - 1}) {{ {_STEPS} }}").index
_NOISE = (1.0, 1.004, 0.997, 1.001, 0.999, 1.003)
_GOOD_ON_B = range(4, 7)


def cost_us(plan: Plan) -> float:
    """A node takes 10 µs on a and 20 on b, three of them 40 on a and 10 on b; a call takes 5."""
    on_b = [i for p in plan.partitions if p.target == B for i in bits(p.nodes)]
    on_a = set(range(_LENGTH)) - set(on_b)
    times_a = sum(40 if i in _GOOD_ON_B else 10 for i in on_a)
    return times_a + sum(10 if i in _GOOD_ON_B else 20 for i in on_b) + 5 * len(plan.partitions)


def nothing_predicted(plan: Plan) -> float:
    return float("inf")


class StatedTimer(PlanTimer):
    """A timer in which a plan takes what a function says, give or take less than a percent."""

    def __init__(self, cost: Callable[[Plan], float | None]) -> None:
        super().__init__(None, None, ignore)
        self.comparisons: list[tuple[int, int]] = []
        self._cost = cost

    def time(
        self,
        plans: Sequence[TimedPlan],
        again: Sequence[TimedPlan] = (),
        rounds: int = JUDGING_ROUNDS,
        **_: float,
    ) -> Standings:
        first = self.entries[0] if self.entries else plans[0]
        known = [] if not self.entries else [first, *(e for e in again if e is not first)]
        self.entries.extend(plans)
        baseline = self._samples(first, rounds, 0)
        for position, entry in enumerate([*known, *plans]):
            samples = self._samples(entry, rounds, position)
            timing = PlanTiming(samples) if samples else PlanTiming(failure="crash: it is stated")
            entry.timings[len(self.comparisons)] = timing
            pairs = zip(samples, baseline, strict=False)
            entry.baseline_ratios[len(self.comparisons)] = [a / b for a, b in pairs]
        self.comparisons.append((len(plans), rounds))
        return self.standings

    def _samples(self, entry: TimedPlan, rounds: int, shift: int) -> tuple[float, ...]:
        cost = self._cost(entry.plan)
        if cost is None:
            return ()
        return tuple(cost * _NOISE[(i + shift) % len(_NOISE)] for i in range(rounds))


def _search(
    timer: StatedTimer, out_of_time: Callable[[], bool] = lambda: False, **settings: object
) -> tuple[LocalSearch, TimedPlan]:
    start = TimedPlan(Plan((Candidate(INDEX.all_nodes, A),)), "single null")
    timer.time([start])
    moves = LocalMoves(INDEX, CandidateSet.build(INDEX, []), (A, B))
    limits = LocalSettings(**settings)  # type: ignore[arg-type]
    return LocalSearch(moves, timer, limits, out_of_time, nothing_predicted), start


@pytest.mark.slow
def test_finds_the_best_plan_from_a_single_target() -> None:
    timer = StatedTimer(cost_us)
    search, start = _search(timer, trials=60)
    best = search.improve(start)
    assert [(str(p.target), bits(p.nodes)) for p in best.plan.partitions] == [
        ("null", [0, 1, 2, 3]),
        ("simulated", [4, 5, 6]),
        ("null", [7, 8, 9, 10, 11]),
    ]
    assert timer.standings.winner() is best


@pytest.mark.slow
def test_the_same_seed_makes_the_same_moves() -> None:
    runs = []
    for _ in range(2):
        timer = StatedTimer(cost_us)
        search, start = _search(timer, trials=20, seed=3)
        search.improve(start)
        runs.append([(entry.name, entry.plan) for entry in timer.entries])
    assert runs[0] == runs[1]
    assert len(runs[0]) > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_half_of_a_screening_is_the_most_promising(seed: int) -> None:
    def first_screening(predict_us: Callable[[Plan], float]) -> list[Plan]:
        timer = StatedTimer(cost_us)
        search, start = _search(timer, lambda: len(timer.comparisons) >= 2, seed=seed)
        search.predict_us = predict_us
        search.improve(start)
        return [entry.plan for entry in timer.entries[1:5]]

    asked = first_screening(nothing_predicted)
    guided = first_screening(cost_us)
    assert sum(plan in guided for plan in asked) >= 2
    assert min(map(cost_us, guided)) <= min(map(cost_us, asked))
    others = [plan for plan in guided if plan not in asked[:2]]
    passed_over = [plan for plan in asked if plan not in guided]
    assert all(cost_us(plan) <= cost_us(other) for plan in others for other in passed_over)


@pytest.mark.slow
def test_move_that_is_not_clearly_faster_does_not_win() -> None:
    timer = StatedTimer(lambda plan: 100.0)  # all alike: a plan that looks faster was lucky
    search, start = _search(timer, trials=30)
    assert search.improve(start) is start
    assert timer.standings.winner() is start


@pytest.mark.slow
def test_plans_that_fail_are_left_behind() -> None:
    timer = StatedTimer(lambda plan: None if B in plan.targets else cost_us(plan))
    search, start = _search(timer, trials=30)
    assert search.improve(start) is start


@pytest.mark.slow
def test_losers_cost_few_rounds() -> None:
    timer = StatedTimer(lambda plan: 100.0 if len(plan.partitions) == 1 else 300.0)
    search, start = _search(timer, trials=30)
    search.improve(start)
    assert {rounds for plans, rounds in timer.comparisons[1:] if plans} == {6}


def test_ends_in_time() -> None:
    timer = StatedTimer(cost_us)
    search, start = _search(timer, lambda: len(timer.comparisons) >= 3, trials=10_000)
    search.improve(start)
    assert len(timer.comparisons) == 3


def test_gain_in_the_last_screening_is_confirmed_however_late() -> None:
    timer = StatedTimer(lambda plan: 100.0 if len(plan.partitions) == 1 else 90.0)
    search, start = _search(timer, lambda: len(timer.comparisons) >= 2)
    assert search.improve(start) is not start
    assert [rounds for _, rounds in timer.comparisons[1:]] == [6, 12]


def test_ends_when_there_is_nothing_left_to_try() -> None:
    index = text_model("g (float[4] x) => (float[4] y) { y = Relu(x) }").index
    start = TimedPlan(Plan((Candidate(1, A),)), "single null")
    timer = StatedTimer(lambda plan: 10.0)
    timer.time([start])
    moves = LocalMoves(index, CandidateSet.build(index, []), (A,))
    search = LocalSearch(moves, timer, LocalSettings(10_000), lambda: False, nothing_predicted)
    assert search.improve(start) is start


@pytest.mark.slow
def test_the_study_can_be_read_from_the_database_with_the_costs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'costs.db'}"
    database = CostDatabase(url)
    told: list[Event] = []
    keep = partial(optuna_study.keep, database.connections, "0123456789abcdef", told.append)
    for _ in range(2):
        search, start = _search(StatedTimer(cost_us), trials=6, keep=keep)
        search.improve(start)
    assert database.look_up(["0" * 64]) == {}, "the costs are still there"
    database.close()
    assert not told
    storage = optuna.storages.RDBStorage(url)
    names = optuna.get_all_study_names(storage)
    trials = optuna.load_study(study_name=names[0], storage=storage).trials
    storage.remove_session()
    storage.engine.dispose()
    assert len(names) == 2 and all(name.startswith("0123456789ab 20") for name in names)
    assert {trial.state.name for trial in trials} == {"COMPLETE"}
    assert all(trial.params["kind"] and trial.user_attrs["plan"] for trial in trials)


@pytest.mark.slow
def test_study_that_cannot_be_stored_is_reported_and_changes_nothing(tmp_path: Path) -> None:
    connections = Connections(f"sqlite:///{tmp_path / 'costs.db'}")
    told: list[Event] = []
    (tmp_path / "costs.db").write_bytes(b"this is no database" * 100)
    keep = partial(optuna_study.keep, connections, "0123456789abcdef", told.append)
    search, start = _search(StatedTimer(cost_us), trials=60, keep=keep)
    assert len(search.improve(start).plan.partitions) == 3
    connections.close()
    assert len(told) == 1 and "could not be kept" in told[0].message


def test_is_left_out_where_nothing_can_come_of_it() -> None:
    single, slow = (TimedPlan(Plan((Candidate(INDEX.all_nodes, t),)), str(t)) for t in (A, B))
    for entry, ratio in ((single, 1.0), (slow, 1.5)):
        entry.timings[0], entry.baseline_ratios[0] = PlanTiming((1000.0,)), [ratio]
    assert not worth_a_search([single, slow], single, (A, B))
    slow.baseline_ratios[0] = [1.05]
    assert worth_a_search([single, slow], single, (A, B))
    assert not worth_a_search([single], single, (A,))
    quick = TimedPlan(Plan((Candidate(INDEX.all_nodes, A.with_options(threads="1")),)), "on one thread")
    quick.timings[0], quick.baseline_ratios[0] = PlanTiming((1000.0,)), [1.0]
    slow.baseline_ratios[0] = [1.5]
    assert not worth_a_search([single, slow, quick], single, (A, B))
    assert not worth_a_search([single, slow, quick], quick, (A, B))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_options_of_the_incumbents_target_begin_each_screening(seed: int) -> None:
    """By chance it might not come up at all: nothing that is known of parts promises anything of it."""
    timer = StatedTimer(lambda plan: 100.0 * len(plan.partitions))
    start = TimedPlan(Plan((Candidate(INDEX.all_nodes, A),)), "single null")
    timer.time([start])
    names = ["backoff", "layout", "mode", "opt", "threads"]
    tunable = {A: dict.fromkeys(names, ("1",)), B: {f"x{i}": ("on",) for i in range(9)}}
    moves = LocalMoves(INDEX, CandidateSet.build(INDEX, []), (A, B), tunable=tunable)
    search = LocalSearch(
        moves, timer, LocalSettings(seed=seed), lambda: len(timer.entries) > 12, cost_us
    )
    search.improve(start)
    tried = [str(entry.plan.partitions[0].target) for entry in timer.entries[1:]]
    assert tried[:2] == ["null -backoff=1", "null -layout=1"]
    for screenings in (1, 2, 3):  # of four proposals; chance may come upon one earlier
        assert {f"null -{name}=1" for name in names[: 2 * screenings]} <= set(tried[: 4 * screenings])


@pytest.mark.slow
def test_options_of_a_new_incumbents_target_are_asked_for_then() -> None:
    """`-fast=yes` on top of `-threads=1`: each is a gain."""

    def cost(plan: Plan) -> float:
        given = [dict(partition.target.options) for partition in plan.partitions]
        return 100.0 * len(given) - 10.0 * sum(map(len, given))

    timer = StatedTimer(cost)
    start = TimedPlan(Plan((Candidate(INDEX.all_nodes, A),)), "single null")
    timer.time([start])
    tunable = {A: {"fast": ("yes",), "threads": ("1",)}}
    moves = LocalMoves(INDEX, CandidateSet.build(INDEX, []), (A,), tunable=tunable)
    search = LocalSearch(moves, timer, LocalSettings(8), lambda: False, nothing_predicted)
    best = search.improve(start)
    assert [str(p.target) for p in best.plan.partitions] == ["null -fast=yes -threads=1"]


@pytest.mark.slow
def test_options_of_partitions_are_tried_where_they_are_open() -> None:
    """`-fast=yes` halves what b takes; nothing else is told apart, so it must be found."""

    def cost(plan: Plan) -> float:
        return cost_us(
            Plan(tuple(replace(p, target=Target(p.target.backend)) for p in plan.partitions))
        ) - (50 if any(p.target.option("fast", "no") == "yes" for p in plan.partitions) else 0)

    timer = StatedTimer(cost)
    start = TimedPlan(Plan((Candidate(INDEX.all_nodes, A),)), "single null")
    timer.time([start])
    moves = LocalMoves(INDEX, CandidateSet.build(INDEX, []), (A, B), tunable={A: {"fast": ("yes",)}})
    search = LocalSearch(moves, timer, LocalSettings(60), lambda: False, nothing_predicted)
    best = search.improve(start)
    assert "null -fast=yes" in {str(p.target) for p in best.plan.partitions}

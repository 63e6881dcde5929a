"""Successive halving on stated measurements: what wins, how much is measured, and what noise cannot do."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from collage.objectives.goal import Goal
from collage.objectives.halving import Tried, best, halve
from collage.objectives.settings import Setting
from collage.objectives.trial import Trial
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.target import Target

THROUGHPUT = Goal("throughput")


def setting(name: str, instances: int = 1, partitions: int = 1) -> Setting:
    parts = tuple(Candidate(1 << i, Target.parse("null")) for i in range(partitions))
    return Setting(Plan(parts), name, instances, 2 // instances)


class Machine:
    """Answers with stated trials, at a pace that drifts, and counts what was asked."""

    def __init__(
        self, rates: Mapping[str, float], noise: float = 0.0, **stated: Mapping[str, float]
    ) -> None:
        self.rates, self.noise, self.stated = rates, noise, stated
        self.chance = random.Random(0)
        self.asked: Counter[str] = Counter()
        self.pace = 1.0

    def measure(self, setting: Setting, seconds: float) -> Trial:
        self.asked[setting.name] += 1
        self.pace *= 1 + self.noise * self.chance.uniform(-1, 1)
        rate = self.rates[setting.name]
        if not rate:
            return Trial(failure="it crashed")
        rate *= self.pace * (1 + self.noise * self.chance.uniform(-1, 1))
        p99_us = self.stated.get("p99_us", {}).get(setting.name, 1000.0)
        rss = self.stated.get("rss", {}).get(setting.name, 100.0)
        return Trial(
            throughput=rate,
            median_us=p99_us / 2,
            p99_us=p99_us,
            requests=10,
            peak_rss_bytes=int(rss),
            load_s=1.0,
        )


def chosen(machine: Machine, settings: list[Setting], goal: Goal = THROUGHPUT) -> str:
    found = best(halve(settings, machine.measure, goal), goal)
    assert found is not None
    return found.setting.name


def test_the_best_of_many_wins_and_the_worst_are_measured_once() -> None:
    names = [f"s{i}" for i in range(16)]
    machine = Machine({name: 100.0 + 10 * i for i, name in enumerate(names)})
    assert chosen(machine, [setting(name) for name in names]) == "s15"
    assert machine.asked["s0"] == 1 and machine.asked["s15"] == 5


def test_drift_of_the_machine_does_not_decide() -> None:
    for seed in range(20):
        machine = Machine({"a": 100.0, "b": 110.0, "c": 90.0}, noise=0.03)
        machine.chance.seed(seed)
        assert chosen(machine, [setting(name) for name in "abc"]) == "b"


def test_among_nearly_equal_settings_the_simplest_wins() -> None:
    machine = Machine({"mix": 101.0, "two": 100.0, "one": 99.0})
    settings = [setting("mix", partitions=2), setting("two", instances=2), setting("one")]
    assert chosen(machine, settings) == "two"


def test_what_breaks_the_bound_loses_to_what_keeps_it() -> None:
    machine = Machine({"fast": 200.0, "slow": 50.0}, p99_us={"fast": 30_000.0, "slow": 10_000.0})
    settings = [setting("fast"), setting("slow")]
    assert chosen(machine, settings, Goal("throughput", p99_us=20_000.0)) == "slow"
    # Where none keeps it, the nearest is returned.
    assert chosen(machine, settings, Goal("throughput", p99_us=5_000.0)) == "slow"
    assert chosen(machine, settings, Goal("throughput", p99_us=40_000.0)) == "fast"


def test_memory_wins_within_the_bound_on_latency() -> None:
    machine = Machine(
        {"small": 10.0, "large": 100.0},
        p99_us={"small": 100_000.0, "large": 10_000.0},
        rss={"small": 50, "large": 100},
    )
    settings = [setting("small"), setting("large")]
    assert chosen(machine, settings, Goal("memory")) == "small"
    assert chosen(machine, settings, Goal("memory", median_us=20_000.0)) == "large"


def test_weights_decide_between_rates_and_memory() -> None:
    machine = Machine({"small": 50.0, "large": 100.0}, rss={"small": 50, "large": 200})
    settings = [setting("small"), setting("large")]
    assert chosen(machine, settings, Goal("throughput=0.8,memory=0.2")) == "large"
    assert chosen(machine, settings, Goal("throughput=0.5,memory=0.5")) == "small"


def test_settings_that_follow_from_the_best_may_win() -> None:
    machine = Machine({"a": 100.0, "b": 110.0, "b4": 150.0, "a4": 0.0})
    asked: list[list[str]] = []

    def more(ran: Sequence[Setting]) -> list[Setting]:
        asked.append([each.name for each in ran])
        return [setting(f"{each.name}4") for each in ran]

    settings = [setting("a"), setting("b")]
    tried = halve(settings, machine.measure, THROUGHPUT, more=more)
    assert asked == [["b", "a"]]
    assert [each.setting.name for each in tried] == ["a", "b", "b4", "a4"]
    found = best(tried, THROUGHPUT)
    assert found is not None and found.setting.name == "b4"
    assert machine.asked["a4"] == 1


def test_what_fails_is_told_and_never_wins() -> None:
    machine = Machine({"crashes": 0.0, "runs": 1.0})
    tried = halve([setting("crashes"), setting("runs")], machine.measure, THROUGHPUT)
    assert [each.failure for each in tried] == ["it crashed", None]
    found = best(tried, THROUGHPUT)
    assert found is not None and found.setting.name == "runs"
    assert best(halve([setting("crashes")], machine.measure, THROUGHPUT), THROUGHPUT) is None


@pytest.mark.parametrize("trials", range(8))
def test_without_time_the_best_so_far_is_returned(trials: int) -> None:
    left = [trials]

    def fits() -> bool:
        left[0] -= 1
        return left[0] >= 0

    machine = Machine({"a": 1.0, "b": 2.0, "c": 3.0})
    tried = halve([setting(name) for name in "abc"], machine.measure, THROUGHPUT, fits)
    found = best(tried, THROUGHPUT)
    assert found is not None and machine.asked["a"] >= 1
    assert all(isinstance(each, Tried) and each.trials for each in tried)
    assert sum(machine.asked.values()) <= max(1, trials)

"""The ceiling: the cheapest mix of stretches, borders for nothing."""

import pytest

from benchmarks.ceiling import ceiling_us, plans_to_run


def test_each_stretch_goes_to_its_fastest_target() -> None:
    us, plan = ceiling_us({"a": 60.0, "b": 60.0}, {"a": [10, 20, 30], "b": [30, 20, 10]}, most=2)
    assert us == pytest.approx(40)
    assert [target for _, _, target in plan] == ["a", "b"]


def test_a_whole_model_costs_what_it_took() -> None:
    us, plan = ceiling_us({"a": 40.0}, {"a": [20, 20, 20], "b": [30, 30, 30]}, most=3)
    assert us == pytest.approx(40)
    assert plan == [(0, 3, "a")]


def test_every_stretch_saves_what_the_whole_does() -> None:
    us, _ = ceiling_us({"a": 40.0}, {"a": [20, 20, 20], "b": [90, 90, 1]}, most=2)
    assert us == pytest.approx(40 * 2 / 3 + 1)


def test_a_limit_of_partitions_is_kept() -> None:
    times = {"a": [1, 9, 1, 9], "b": [9, 1, 9, 1]}
    single = {"a": 20.0, "b": 20.0}
    assert ceiling_us(single, times, most=4)[0] == pytest.approx(4)
    assert ceiling_us(single, times, most=2)[0] == pytest.approx(12)
    assert ceiling_us(single, times, most=1)[0] == pytest.approx(20)


def test_a_refused_stretch_is_someone_elses() -> None:
    us, plan = ceiling_us({"a": 30.0}, {"a": [10, 10, 10], "b": [1, None, 1]}, most=3)
    assert us == pytest.approx(12)
    assert [target for _, _, target in plan] == ["b", "a", "b"]


def test_every_target_runs_whole_and_in_stretches() -> None:
    allowed = {(0, 1): ["a", "b"], (1, 2): ["a"], (0, 2): ["a"]}
    assert plans_to_run(2, allowed) == [
        ((0, 2, "a"),),
        ((0, 1, "a"), (1, 2, "a")),
        ((0, 1, "b"), (1, 2, "a")),
    ]

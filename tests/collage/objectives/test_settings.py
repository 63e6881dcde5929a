"""Settings: cores are shared out, each division once, the winner for one request first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collage.backends.contract import Available
from collage.backends.registry import resolve
from collage.objectives.settings import joined, row_counts, settings, stages_of
from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.target import Target
from collage.timing.request import PlanTiming
from collage.timing.timed_plan import TimedPlan


def entry(name: str, us: float, *targets: str) -> TimedPlan:
    parts = tuple(Candidate(1 << i, Target.parse(target)) for i, target in enumerate(targets))
    timing = PlanTiming(samples_us=(us,))
    return TimedPlan(Plan(parts), name, timings={0: timing}, baseline_ratios={0: [us]})


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (1, [(1, 1)]),
        (2, [(1, 2), (2, 1)]),
        (6, [(1, 6), (6, 1), (2, 3), (4, 1)]),
        (8, [(1, 8), (8, 1), (2, 4), (4, 2)]),
    ],
)
def test_cores_are_shared_out(cores: int, expected: list[tuple[int, int]]) -> None:
    winner = entry("w", 1.0, "onnxruntime")
    found = settings("throughput", winner, [winner], cores)
    assert [(each.instances, each.threads) for each in found] == expected
    assert all(each.instances * each.threads <= cores for each in found)


def test_for_memory_there_is_one_instance() -> None:
    winner, other = entry("w", 1.0, "onnxruntime", "mnn"), entry("o", 2.0, "mnn")
    found = settings("memory", winner, [winner, other], 8)
    assert [(each.name, each.instances, each.threads) for each in found] == [("w", 1, 8), ("o", 1, 8)]


def test_targets_that_differ_in_threads_alone_may_be_one() -> None:
    winner, other = entry("w", 1.0, "onnxruntime"), entry("o", 2.0, "onnxruntime -threads=1")
    found = settings("throughput", winner, [winner, other], 2)
    assert [(each.name, each.instances) for each in found] == [("w", 1), ("w", 2), ("o", 1)]


def test_plans_far_behind_and_many_mixes_are_left_out() -> None:
    winner = entry("w", 1.0, "onnxruntime", "mnn")
    slow = entry("slow", 5.0, "mnn")
    mixes = [entry(f"m{i}", 1.1 + i / 10, *["mnn", "onnxruntime"] * (i + 1)) for i in range(5)]
    names = {each.name for each in settings("throughput", winner, [winner, *mixes, slow], 1)}
    assert names == {"w", "m0", "m1"}


def test_openvino_is_also_served_as_it_likes_to_be() -> None:
    if not isinstance(resolve(Target.parse("openvino")).probe(), Available):
        pytest.skip("OpenVINO is not installed")
    winner = entry("single openvino", 1.0, "openvino")
    found = settings("throughput", winner, [winner], 2)
    served = [each for each in found if "throughput" in each.name]
    assert [(each.instances, each.threads) for each in served] == [(2, 1)]
    assert str(served[0].plan.partitions[0].target) == "openvino -hint=throughput -pinning=on"


def mix(us: float, *steps_us: float) -> TimedPlan:
    made = entry("mix", us, *["mnn", "onnxruntime"] * len(steps_us))
    timing = PlanTiming(samples_us=(us,), step_us=steps_us)
    parts = made.plan.partitions[: len(steps_us)]
    return replace(made, plan=Plan(parts), timings={0: timing})


@pytest.mark.parametrize(
    ("times", "count", "stages"),
    [
        ((10.0, 10.0), 2, (1, 1)),
        ((10.0, 10.0, 20.0), 2, (2, 1)),
        ((10.0, 20.0, 5.0, 5.0), 2, (1, 3)),
        ((1.0, 9.0, 9.0, 1.0, 10.0), 3, (2, 2, 1)),
        ((95.0, 5.0), 2, ()),  # the other stage would wait
        ((10.0, 10.0), 3, ()),
        ((), 2, ()),
    ],
)
def test_stages_take_about_as_long(
    times: tuple[float, ...], count: int, stages: tuple[int, ...]
) -> None:
    assert stages_of(mix(100.0, *times), count) == stages


def test_pipelines_have_a_request_more_than_stages() -> None:
    winner = mix(100.0, 40.0, 60.0)
    found = settings("throughput", winner, [winner], cores=4)
    lines = [(s.instances, s.threads, s.stages) for s in found if s.stages]
    assert lines == [(3, 2, (1, 1))]
    assert not any(s.stages for s in settings("memory", winner, [winner], cores=4))
    assert found[-1].planned(4).stages == (1, 1)


def test_best_settings_are_also_measured_with_several_requests_a_call() -> None:
    winner = mix(100.0, 40.0, 60.0)
    found = settings("throughput", winner, [winner], cores=2)
    assert [(s.instances, s.stages) for s in found] == [(1, ()), (2, ()), (3, (1, 1))]
    made = joined([found[2], found[1], found[0], found[0]], (4, 8))
    assert [(s.instances, s.rows) for s in made] == [(2, 4), (2, 8), (1, 4), (1, 8)]
    assert made[0].planned(2).rows == 4 and made[0].identity != found[1].identity
    assert joined(made, (4, 8)) == joined(found, ()) == []


@pytest.mark.parametrize("target", ["onnxruntime -quant=dynamic_int8", "mnn -precision=int8"])
def test_requests_that_would_change_each_others_rounding_are_not_joined(target: str) -> None:
    rounded = entry("rounded", 100.0, target, "onnxruntime")
    found = settings("throughput", rounded, [rounded], cores=1)
    assert found and joined(found, (4, 8)) == []


def test_calls_that_would_break_the_bound_are_not_measured() -> None:
    winner = entry("w", 1000.0, "onnxruntime")
    assert row_counts(winner, None) == [4, 8]
    assert row_counts(winner, 5000.0) == [4]
    assert row_counts(winner, 2000.0) == []


def test_no_request_has_more_threads_than_the_caller_allows() -> None:
    winner = entry("w", 1.0, "onnxruntime")
    found = settings("throughput", winner, [winner], cores=4, most_threads=2)
    assert [(each.instances, each.threads) for each in found] == [(1, 2), (4, 1), (2, 2)]

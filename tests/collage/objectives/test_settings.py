"""Settings: cores are shared out, each division once, the winner for one request first."""

from __future__ import annotations

import pytest

from collage.backends.contract import Available
from collage.backends.registry import resolve
from collage.objectives.settings import row_counts, settings
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


def test_calls_of_several_requests_come_after_those_of_one() -> None:
    winner, mix = entry("w", 1.0, "onnxruntime"), entry("m", 1.1, "onnxruntime", "mnn")
    found = settings("throughput", winner, [winner, mix], cores=1, rows=(1, 4, 8))
    assert [(each.name, each.rows) for each in found] == [("w", 1), ("m", 1), ("w", 4), ("w", 8)]
    assert found[2].planned(1).rows == 4


def test_calls_that_would_break_the_bound_are_not_measured() -> None:
    winner = entry("w", 1000.0, "onnxruntime")
    assert row_counts(winner, None) == [4, 8]
    assert row_counts(winner, 5000.0) == [4]
    assert row_counts(winner, 2000.0) == []


def test_no_request_has_more_threads_than_the_caller_allows() -> None:
    winner = entry("w", 1.0, "onnxruntime")
    found = settings("throughput", winner, [winner], cores=4, most_threads=2)
    assert [(each.instances, each.threads) for each in found] == [(1, 2), (4, 1), (2, 2)]

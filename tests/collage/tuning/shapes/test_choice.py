"""Which plan runs which shapes, by stated times."""

from __future__ import annotations

import pytest

from collage.partitioner.candidate import Candidate, Plan
from collage.partitioner.errors import NoPlanError
from collage.partitioner.target import Target
from collage.tuning.shapes.choice import choose_classes
from tests.collage.tuning.shapes.stated import MIX, MODEL, A, B, C, shapes

_EVEN = {10: 0.5, 110: 0.5}


def _names(plan: Plan | None) -> str:
    return "none" if plan is None else "+".join(str(p.target) for p in plan.partitions)


def test_one_plan_for_all_where_none_is_faster_anywhere() -> None:
    times = {"null": 5.0, "simulated": 9.0, "onnxruntime": 8.0}
    (one,) = choose_classes(shapes(_EVEN, lambda name, n: times[name] * n))
    assert (_names(one.plan), one.up_to, one.shapes, one.hot) == ("null", None, (0, 1), None)


def test_a_border_lies_where_measured_times_cross() -> None:
    """One plan has a fixed cost and the other grows twice as fast: they cross at 60."""

    def cost(name: str, n: int) -> float:
        return {"null": 600.0 + 10.0 * n, "simulated": 20.0 * n, "onnxruntime": 5000.0}[name]

    small, large = choose_classes(shapes(_EVEN, cost))
    assert (_names(small.plan), _names(large.plan)) == ("simulated", "null")
    assert small.up_to is not None
    assert 57 <= small.up_to <= 63
    assert large.up_to is None


def test_a_plan_within_the_noise_makes_no_class() -> None:
    times = {"null": 5.0, "simulated": 5.005, "onnxruntime": 8.0}

    def cost(name: str, n: int) -> float:
        near = 4.998 if name == "simulated" and n == 10 else times[name]
        return near * n

    (one,) = choose_classes(shapes(_EVEN, cost))
    assert one.up_to is None


def test_the_common_plan_has_the_least_weighted_time() -> None:
    """No plan is proven faster than another at both shapes, so the weights decide which one serves shape 50."""
    times = {10: {"null": 10.0, "simulated": 30.0}, 50: {"null": 30.0, "simulated": 10.0}}

    def cost(name: str, n: int) -> float | None:
        return times[n].get(name)

    for weight, order in ((0.9, ("null", "simulated")), (0.1, ("null", "simulated"))):
        classes = choose_classes(shapes({10: weight, 50: 1 - weight}, cost))
        assert tuple(_names(one.plan) for one in classes) == order


def test_a_plan_that_runs_at_some_shapes_only_serves_these() -> None:
    def cost(name: str, n: int) -> float | None:
        if name == "null":
            return 1.0 * n if n <= 10 else None
        return 3.0 * n if name == "simulated" else None

    small, large = choose_classes(shapes(_EVEN, cost))
    assert (_names(small.plan), _names(large.plan)) == ("null", "simulated")
    assert small.up_to == 10


def test_more_partitions_must_be_proven_faster() -> None:
    plans = {"single": Plan((Candidate(MODEL.index.all_nodes, A),)), "found": MIX}
    times = {"null": 5.0, "null+simulated": 4.999}
    (one,) = choose_classes(shapes(_EVEN, lambda name, n: times[name] * n, plans=plans))
    assert _names(one.plan) == "null"
    times["null+simulated"] = 4.0
    (one,) = choose_classes(shapes(_EVEN, lambda name, n: times[name] * n, plans=plans))
    assert _names(one.plan) == "null+simulated"


def test_shapes_that_gain_from_compiling_alone_are_a_class() -> None:
    def alone(name: str, n: int) -> float:
        return (2.0 if n == 10 and name == "simulated" else 6.0) * n

    small, large = choose_classes(shapes(_EVEN, lambda name, n: 5.0 * n, alone))
    assert (_names(small.hot), _names(large.hot)) == ("simulated", "none")
    assert _names(small.plan) == _names(large.plan)
    assert small.up_to == 33  # the geometric mean: nothing says where between them the gain ends


def test_a_plan_that_was_timed_at_one_shape_is_timed_at_its_neighbor() -> None:
    def cost(name: str, n: int) -> float:
        return {"null": 600.0 + 10.0 * n, "simulated": 20.0 * n, "onnxruntime": 5000.0}[name]

    left, right = shapes(_EVEN, cost)
    right.dynamic = [e for e in right.dynamic if e.plan.partitions[0].target != B]
    right.fixed = [e for e in right.fixed if e.plan.partitions[0].target != B]
    small, _ = choose_classes([left, right])
    assert small.up_to is not None
    assert 57 <= small.up_to <= 63


def test_a_shape_at_which_nothing_runs_is_named() -> None:
    with pytest.raises(NoPlanError, match=r"free dimensions at N=110 .*it is stated"):
        choose_classes(shapes(_EVEN, lambda name, n: 1.0 if n == 10 else None))


def test_single_targets_are_those_of_the_user() -> None:
    (at,) = shapes({10: 1.0}, lambda name, n: 1.0)
    assert list(at.singles()) == [A, B, C]


def test_shapes_of_one_extent_have_one_plan() -> None:
    """No border can lie between them, so the weights decide."""
    first = shapes({10: 0.7}, lambda name, n: 5.0 if name == "null" else 9.0)
    second = shapes({10: 0.3}, lambda name, n: 5.0 if name == "simulated" else 9.0)
    (one,) = choose_classes([*first, *second])
    assert (_names(one.plan), one.up_to, one.shapes) == ("null", None, (0, 1))


def test_all_classes_have_int8_in_the_same_partitions() -> None:
    """Where int8 is faster at one size and float at another, one of them is for both: there is one file."""
    float_plan, int8 = (
        Plan((Candidate(MODEL.index.all_nodes, Target.parse(text)),))
        for text in ("onnxruntime", "onnxruntime -quant=static_int8")
    )
    times = {
        "onnxruntime": {10: 5.0, 110: 90.0},
        "onnxruntime -quant=static_int8": {10: 9.0, 110: 60.0},
    }
    plans = {"float": float_plan, "int8": int8}
    for weight, wanted in ((0.01, int8), (0.99, float_plan)):
        timed = shapes({10: weight, 110: 1 - weight}, lambda name, n: times[name][n], plans=plans)
        (one,) = choose_classes(timed)
        assert _names(one.plan) == _names(wanted)


def test_a_hot_plan_has_int8_where_the_plan_for_all_sizes_has_it() -> None:
    texts = ("onnxruntime", "onnxruntime -quant=static_int8")
    float_plan, int8 = (Plan((Candidate(MODEL.index.all_nodes, Target.parse(t)),)) for t in texts)

    def any_shape(name: str, n: int) -> float:
        return {texts[0]: 9.0, texts[1]: 5.0}[name] * n

    def alone(name: str, n: int) -> float:
        return {texts[0]: 1.0, texts[1]: 4.0}[name] * n

    timed = shapes(_EVEN, any_shape, alone, plans={"float": float_plan, "int8": int8})
    (one,) = choose_classes(timed)
    assert (_names(one.plan), _names(one.hot)) == (texts[1], texts[1])

"""What borders cost, on cases small enough to add up by hand."""

from __future__ import annotations

import pytest

from collage.partitioner.candidate import Candidate
from collage.partitioner.errors import BadInputError
from collage.partitioner.search.transition import CopyCost, Transitions
from collage.partitioner.target import Target
from tests.partitioner.graphs import text_model

A, B = Target("alpha"), Target("beta")

# a is read by b and c; d reads both and is the output. Every value has 1 MiB.
INDEX = text_model(
    """g (float[262144] x) => (float[262144] d) {
    a = Neg(x)  b = Relu(a)  c = Exp(a)  d = Add(b, c) }"""
).index

EACH = [Candidate(1 << i, target) for i, target in enumerate((A, B, B, A))]
DEVICE = {B: "device"}


def cost(transitions: Transitions, partitions: list[Candidate] = EACH) -> float:
    return transitions.plan_cost(INDEX, partitions)


def test_calls_are_paid_per_partition() -> None:
    assert cost(Transitions(default_call_us=1.0)) == 4.0
    assert cost(Transitions(default_call_us=1.0, call_us={B: 10.0})) == 22.0
    assert cost(Transitions(default_call_us=1.0), [Candidate(0b1111, A)]) == 1.0


def test_a_copy_is_paid_once_per_value_and_domain() -> None:
    there, back = CopyCost(5.0, 2.0), CopyCost(7.0)
    transitions = Transitions(
        default_call_us=0.0,
        domains=DEVICE,
        copies={("host", "device"): there, ("device", "host"): back},
    )
    # a goes to the device once for both its readers; b and c come back.
    assert cost(transitions) == pytest.approx((5.0 + 2.0 * 1) + 7.0 + 7.0)


def test_inputs_come_from_the_host_and_outputs_go_there() -> None:
    copies = dict.fromkeys((("host", "device"), ("device", "host")), CopyCost(3.0, 1.0))
    transitions = Transitions(default_call_us=0.0, domains=DEVICE, copies=copies)
    assert cost(transitions, [Candidate(0b1111, B)]) == pytest.approx(2 * (3.0 + 1.0))
    assert cost(transitions, [Candidate(0b1111, A)]) == 0.0


def test_borders_are_paid_per_value_and_reading_partition() -> None:
    transitions = Transitions(default_call_us=0.0, border_us={A: 1.0, B: 10.0})
    # b and c read a; d reads b and c. The graph input is not a border.
    assert cost(transitions) == 10.0 + 10.0 + 1.0 + 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"default_call_us": -1.0},
        {"border_us": {A: float("nan")}},
        {"copies": {("host", "device"): CopyCost(fixed_us=-1.0)}},
        {"copies": {("host", "device"): CopyCost(us_per_mib=float("inf"))}},
    ],
)
def test_costs_are_finite_and_not_negative(wrong: dict) -> None:
    with pytest.raises(BadInputError):
        Transitions(**wrong)

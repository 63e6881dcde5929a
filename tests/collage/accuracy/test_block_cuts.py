"""Where a model is cut, and what is between."""

from __future__ import annotations

from typing import Any, cast

import pytest

from collage.accuracy.block_cuts import blocks_between, first_cuts, whole_layers
from collage.accuracy.budget_search import BudgetSearch
from collage.accuracy.target_choice import TargetChoice
from collage.costs.estimates import Estimates
from collage.events import ignore
from collage.partitioner.target import Target
from collage.runner import Runner
from tests.partitioner.graphs import text_model

PLAIN, INT8 = Target.parse("openvino"), Target.parse("openvino -quant=static_int8")
OTHER = Target.parse("onnxruntime -quant=static_int8")
CHAIN = text_model("g (float[8] x) => (float[8] y) { a = Relu(x)  b = Exp(a)  c = Neg(b)  y = Abs(c) }")
TIMES_US = (1000.0, 1000.0, 1000.0, 1000.0)


def test_cuts_make_blocks_of_about_equal_time() -> None:
    laid = whole_layers(CHAIN.index)
    assert first_cuts(laid, TIMES_US) == (0, 1, 2, 3, 4)
    assert first_cuts(laid, TIMES_US, count=2) == (0, 2, 4)
    first, second = blocks_between(CHAIN.index, laid, (0, 2, 4), (TIMES_US,), frozenset())
    assert (first.times_us, second.times_us) == ((2000.0,), (2000.0,))
    # The first block has no border before it.
    assert first.border_us < second.border_us


@pytest.mark.parametrize(
    ("reduced", "times_us", "promised_us"),
    [
        # Faster everywhere: no mix can beat the whole model.
        (INT8, (300.0, 300.0, 300.0, 300.0), 1200.0),
        # One node is slower in int8, and a change inside a partition is cheap.
        (INT8, (300.0, 300.0, 1100.0, 300.0), 1920.0),
        # On another runtime the gain must pay for two borders.
        (OTHER, (300.0, 300.0, 1070.0, 300.0), 1970.0),
        (OTHER, (300.0, 300.0, 1100.0, 300.0), 1980.0),
    ],
)
def test_a_promise_is_that_of_the_fastest_mix_at_any_error(
    reduced: Target, times_us: tuple[float, ...], promised_us: float
) -> None:
    estimates = Estimates(CHAIN.index)
    estimates.learn(PLAIN, dict(enumerate(TIMES_US)))
    estimates.learn(reduced, dict(enumerate(times_us)))
    budget = BudgetSearch(
        model=cast(Any, CHAIN),
        template=cast(Any, None),
        used_samples=1,
        chosen=TargetChoice(exact=(PLAIN,), reduced=(reduced,), base=PLAIN),
        estimates=estimates,
        listener=ignore,
        runner=Runner(),
        cancel=None,
        span_s=(0.0, 1.0),
    )
    assert budget.promised_us() == pytest.approx(promised_us, abs=0.1)

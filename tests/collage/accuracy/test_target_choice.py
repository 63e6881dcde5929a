"""Which targets are worth mixing in: what the whole model took, where, and how exactly."""

from __future__ import annotations

import pytest

from collage.accuracy.target_choice import choose_targets, exact_limit
from collage.cost_db.costs.row import CostRow
from collage.costs.estimates import Estimates
from collage.partitioner.target import Target
from tests.cost_db.builders import infeasible, measured
from tests.partitioner.graphs import text_model

FAST, OTHER = Target.parse("openvino"), Target.parse("onnxruntime")
BF16, INT8 = Target.parse("openvino -precision=bf16"), Target.parse("onnxruntime -quant=dynamic_int8")
NODES = "g (float[8] x) => (float[8] y) { a = Relu(x)  b = Exp(a)  c = Neg(b)  y = Abs(c) }"
TIMES = {
    FAST: (10.0, 10.0, 10.0, 10.0),
    OTHER: (4.0, 4.0, 18.0, 18.0),
    INT8: (5.0, 5.0, 5.0, 5.0),
}


def row(us: float, error: float = 1e-6) -> CostRow:
    return measured(latency_us=us, error=error)


def known(*targets: Target) -> Estimates:
    estimates = Estimates(text_model(NODES).index)
    for target in targets:
        estimates.learn(target, dict(enumerate(TIMES.get(target, (6.0, 6.0, 6.0, 6.0)))))
    return estimates


def test_reduced_target_no_faster_as_a_whole_may_be_chosen_for_parts() -> None:
    rows = {FAST: row(40.0), BF16: row(44.0, 0.2)}
    chosen = choose_targets(rows, known(FAST, BF16))
    assert (chosen.exact, chosen.reduced, chosen.refused) == ((FAST,), (BF16,), ())


def test_reduced_target_slower_everywhere_excludes_no_other() -> None:
    rows = {FAST: row(40.0), BF16: row(56.0, 0.02), INT8: row(20.0, 0.12)}
    estimates = known(FAST, INT8)
    estimates.learn(BF16, dict.fromkeys(range(4), 14.0))
    chosen = choose_targets(rows, estimates, goal=0.01)
    assert chosen.reduced == (INT8,)
    assert chosen.refused == (f"{BF16} is hardly faster than {FAST} anywhere",)


def test_where_rounding_decides_elements_the_least_error_is_exact() -> None:
    rows = {FAST: row(40.0, 6.50e-4), OTHER: row(44.0, 6.51e-4), BF16: row(20.0, 0.11)}
    chosen = choose_targets(rows, known(FAST, OTHER, BF16))
    assert (set(chosen.exact), chosen.reduced) == ({FAST, OTHER}, (BF16,))


@pytest.mark.parametrize(
    ("errors", "limit"), [((), 5e-4), ((1e-6, 0.1), 5e-4), ((8e-4, 0.1), 8.08e-4), ((0.02, 0.1), 5e-4)]
)
def test_what_is_exact_never_reaches_reduced_precision(errors: tuple[float, ...], limit: float) -> None:
    assert exact_limit(errors) == pytest.approx(limit)


def test_the_most_exact_of_the_reduced_comes_first() -> None:
    rows = {FAST: row(40.0), INT8: row(20.0, 0.05), BF16: row(24.0, 0.02)}
    assert choose_targets(rows, known(FAST, INT8, BF16)).reduced == (BF16, INT8)


def test_hopeless_error_is_left_out_where_another_errs_less() -> None:
    rows = {FAST: row(40.0), INT8: row(20.0, 0.12), BF16: row(24.0, 0.09)}
    estimates = known(FAST, INT8, BF16)
    assert choose_targets(rows, estimates, goal=0.04).reduced == (BF16, INT8)
    chosen = choose_targets(rows, estimates, goal=0.01)
    assert chosen.reduced == (BF16,)
    assert chosen.refused == (f"{INT8} errs by 0.12 on the whole model",)


def test_targets_left_out_of_the_mix_are_reported() -> None:
    rows = {FAST: row(40.0), OTHER: infeasible(), BF16: None, INT8: row(200.0, 0.05)}
    chosen = choose_targets(rows, known(FAST, INT8))
    assert chosen.reduced == ()
    assert chosen.refused == (
        f"{OTHER} does not run the whole model: crash: signal 11",
        f"{BF16} was not measured in time",
        f"{INT8} takes 5.0 times as long as {FAST}",
    )


def test_without_an_exact_target_nothing_is_mixed() -> None:
    chosen = choose_targets({BF16: row(40.0, 0.2)}, known(BF16))
    assert (chosen.exact, chosen.reduced) == ((), ())
    assert chosen.refused == ("no target computes the whole model exactly",)


def test_exact_target_is_compared_where_its_estimate_saves_time() -> None:
    rows = {FAST: row(40.0), OTHER: row(44.0), BF16: row(24.0, 0.2)}
    assert choose_targets(rows, known(FAST, OTHER, BF16)).rivals == (OTHER,)
    rows[OTHER] = row(80.0)
    assert choose_targets(rows, known(FAST, OTHER, BF16)).rivals == ()
    del rows[BF16]
    assert choose_targets(rows, known(FAST, OTHER)).rivals == ()


def test_no_rival_parts_what_goes_inside_one_partition() -> None:
    plain, int8 = Target.parse("openvino"), Target.parse("openvino -quant=static_int8")
    rows = {plain: row(40.0), OTHER: row(44.0), int8: row(24.0, 0.2)}
    estimates = known(OTHER)
    for target, us in ((plain, 10.0), (int8, 9.0), (BF16, 9.0)):
        estimates.learn(target, dict.fromkeys(range(4), us))
    assert choose_targets(rows, estimates).rivals == ()
    rows = {plain: row(40.0), OTHER: row(44.0), BF16: row(24.0, 0.2)}
    assert choose_targets(rows, estimates).rivals == (OTHER,)


def test_more_promising_of_two_inner_targets_is_mixed_in() -> None:
    """Both may be mixed within one partition of the base."""
    plain = Target.parse("openvino")
    static, weights = (Target.parse(f"openvino -quant={kind}_int8") for kind in ("static", "weights"))
    rows = {plain: row(40.0), static: row(20.0, 0.03), weights: row(24.0, 0.015), BF16: row(30.0, 0.02)}
    estimates = known(plain, static, weights)
    estimates.learn(BF16, dict.fromkeys(range(4), 5.0))
    chosen = choose_targets(rows, estimates, goal=0.01)
    assert chosen.reduced == (weights, BF16)
    assert chosen.refused == (f"{static} promises less than {weights} in one partition with {plain}",)
    assert choose_targets(rows, estimates, goal=0.05).reduced == (BF16, static)
    assert choose_targets(rows, estimates).reduced == (BF16, static)


@pytest.mark.parametrize(
    ("bf16_error", "int8_us", "reduced"),
    [
        (0.02, 5.8, (BF16,)),  # it errs more, and is hardly faster
        (0.02, 4.0, (BF16, INT8)),
        (0.055, 7.0, (BF16,)),  # it errs about as much, and is slower
        (0.08, 7.0, (INT8, BF16)),
    ],
)
def test_no_target_is_mixed_that_neither_time_nor_error_favors(
    bf16_error: float, int8_us: float, reduced: tuple[Target, ...]
) -> None:
    rows = {FAST: row(40.0), BF16: row(24.0, bf16_error), INT8: row(4 * int8_us, 0.05)}
    estimates = known(FAST, BF16)
    estimates.learn(INT8, dict.fromkeys(range(4), int8_us))
    chosen = choose_targets(rows, estimates)
    assert chosen.reduced == reduced
    left_out = [f"{INT8} is hardly faster anywhere than {BF16}, with no smaller error"]
    assert list(chosen.refused) == (left_out if INT8 not in reduced else [])


def test_a_target_of_the_base_stays_beside_one_that_errs_as_much() -> None:
    plain, int8 = Target.parse("openvino"), Target.parse("openvino -quant=static_int8")
    rows = {plain: row(40.0), int8: row(20.0, 0.05), INT8: row(20.0, 0.04)}
    estimates = known(plain, INT8)
    estimates.learn(int8, dict.fromkeys(range(4), 5.0))
    assert choose_targets(rows, estimates).reduced == (int8,)


def test_reduced_runtime_nearly_the_fastest_is_the_base() -> None:
    rows = {OTHER: row(38.0), FAST: row(40.0), BF16: row(24.0, 0.2)}
    assert choose_targets(rows, known(FAST, OTHER, BF16)).base == FAST
    rows[FAST] = row(60.0)
    assert choose_targets(rows, known(FAST, OTHER, BF16)).base == OTHER
    del rows[FAST], rows[OTHER]
    assert choose_targets(rows, known(BF16)).base is None

"""Errors of outputs: each metric, and everything that must never pass as equal."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from collage.backends.numerics.comparison import (
    METRICS,
    Ranged,
    compare_outputs,
    output_error,
)
from collage.partitioner.errors import BadInputError

F = np.float32


@pytest.mark.parametrize("metric", METRICS)
def test_equal_is_zero(metric: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(F)
    assert output_error(metric, [x, x[0]], [x.copy(), x[0]]) == pytest.approx(0, abs=1e-15)


def test_max_is_relative_to_the_largest_reference_value() -> None:
    assert output_error("max", [np.array([1, 9], F)], [np.array([2, 10], F)]) == pytest.approx(0.1)


def test_l2_and_cosine() -> None:
    e, a = np.array([3, 4], F), np.array([4, 3], F)
    assert output_error("l2", [a], [e]) == pytest.approx(math.sqrt(2) / 5)
    assert output_error("cosine", [a], [e]) == pytest.approx(1 - 24 / 25)


def test_top1_counts_rows() -> None:
    e = np.array([[0, 1], [0, 1], [1, 0], [1, 0]], F)
    a = np.array([[0, 2], [1, 0], [2, 0], [1, 0]], F)
    assert output_error("top1", [a], [e]) == 0.25


def test_labels_count_singly_under_top1_and_must_be_equal_elsewhere() -> None:
    for labels in (np.array([3, 1, 2, 5]), np.array(["a", "b", "c", "d"], dtype=object)):
        other = labels.copy()
        other[1] = labels[0]
        assert output_error("top1", [other], [labels]) == 0.25
        assert output_error("max", [other], [labels]) == math.inf


def test_the_worst_output_counts_and_is_named() -> None:
    e = np.ones(2, F)
    found = compare_outputs("max", [e, e * 1.5, e], [e, e, e])
    assert (found.error, found.output) == (pytest.approx(0.5), 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("metric", METRICS)
def test_elements_that_are_finite_in_the_reference_alone_count(metric: str, value: float) -> None:
    good, bad = np.array([1, 2, 3], F), np.array([1, value, 3], F)
    assert output_error(metric, [bad], [bad.copy()]) == pytest.approx(0, abs=1e-15)
    assert output_error(metric, [bad], [good]) == math.inf
    assert output_error(metric, [good], [bad]) == pytest.approx(0, abs=1e-15)
    assert output_error(metric, [-bad], [bad]) > 0.5


def test_infinite_reference_refuses_no_large_number() -> None:
    e, a = np.array([[-math.inf, 2, 4]], F), np.array([[-87.3, 2, 4.4]], F)
    assert output_error("max", [a], [e]) == pytest.approx(0.1)
    assert output_error("top1", [a], [e]) == 0
    assert output_error("top1", [-a], [e]) == 1


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_infinite_reference_refuses_nan_and_the_other_infinity(wrong: float) -> None:
    e, a = np.array([-math.inf, 2, 4], F), np.array([wrong, 2, 4], F)
    found = compare_outputs("max", [a], [e])
    assert found.error == math.inf and "NaN or infinite where the reference is not" in found.reason


def test_everything_non_finite() -> None:
    nan = np.full(3, math.nan, F)
    assert output_error("max", [nan], [nan]) == 0


def test_integers_and_booleans_are_exact() -> None:
    e = np.array([100000, 2])
    found = compare_outputs("max", [e + np.array([1, 0])], [e])
    assert found.error == math.inf
    assert found.reason == "1 of 2 values differ"
    assert output_error("max", [e], [e]) == 0
    assert output_error("max", [np.array([True])], [np.array([False])]) == math.inf
    text = np.array(["a", "b"], dtype=object)
    assert output_error("max", [text], [text.copy()]) == 0


def test_quantized_values_are_numbers() -> None:
    e, a = np.array([0, 250], np.uint8), np.array([1, 250], np.uint8)
    assert output_error("max", [a], [e]) == pytest.approx(1 / 250)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64, np.complex64])
def test_other_number_types(dtype: type) -> None:
    e = np.array([1, 2], dtype=dtype)
    assert output_error("max", [e], [e]) == 0
    assert output_error("max", [e * np.array(2, dtype)], [e]) == pytest.approx(1)


def test_shape_and_dtype_must_agree() -> None:
    e = np.ones((2, 1), F)
    assert "shape (2,)" in compare_outputs("max", [e[:, 0]], [e]).reason
    assert "float64" in compare_outputs("max", [e.astype(float)], [e]).reason
    assert output_error("max", [e], [e, e]) == math.inf


def test_differences_count_where_somebody_else_judges() -> None:
    boxes, labels, others = np.ones((3, 4), F), np.array([1, 2, 3]), np.array([1, 2, 4])
    assert output_error("max", [boxes[:2]], [boxes]) == math.inf
    assert output_error("max", [boxes[:2]], [boxes], counted=True) == 1.0
    assert output_error("max", [boxes[0]], [boxes], counted=True) == math.inf
    assert output_error("max", [boxes[:2].astype(float)], [boxes], counted=True) == math.inf
    assert output_error("max", [labels], [others]) == math.inf
    assert output_error("max", [labels], [others], counted=True) == pytest.approx(1 / 3)


def test_empty_and_zero_references() -> None:
    assert output_error("max", [np.zeros((0, 3), F)], [np.zeros((0, 3), F)]) == 0
    zeros = np.zeros(3, F)
    assert output_error("max", [zeros], [zeros]) == 0
    assert output_error("max", [zeros + F(1e-3)], [zeros]) > 1e6
    assert output_error("cosine", [zeros + F(1e-3)], [zeros]) == 1


def test_large_numbers_do_not_overflow() -> None:
    e = np.array([3e38], F)
    assert output_error("max", [-e], [e]) == pytest.approx(2)


def test_an_unknown_metric_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInputError, match="known are max, l2"):
        output_error("mean", [np.zeros(1)], [np.zeros(1)])


def _ranged(value: list[float], low: list[float], high: list[float], dtype: type) -> Ranged:
    return Ranged(*(np.array(a, dtype) for a in (value, low, high)))


@pytest.mark.parametrize("metric", METRICS)
def test_tied_element_is_right_anywhere_in_its_range(metric: str) -> None:
    wanted = _ranged([1, 4, 8], [1, 2, 8], [1, 6, 8], F)
    assert output_error(metric, [np.array([1, 6, 8], F)], [wanted]) == pytest.approx(0, abs=1e-15)


def test_tied_element_beyond_its_range_errs_by_the_distance() -> None:
    wanted = _ranged([1, 4, 8], [1, 2, 8], [1, 6, 8], F)
    assert output_error("max", [np.array([1, 8, 8], F)], [wanted]) == pytest.approx(2 / 8)
    assert output_error("max", [np.array([1, np.nan, 8], F)], [wanted]) == math.inf


def test_decided_elements_beside_it_count_as_ever() -> None:
    wanted = _ranged([1, 4, 8], [1, 2, 8], [1, 6, 8], F)
    assert output_error("max", [np.array([2, 6, 8], F)], [wanted]) == pytest.approx(1 / 8)
    assert output_error("max", [np.array([[1, 4, 8]], F)], [wanted]) == math.inf


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint16])
def test_tied_integer_is_right_within_its_range_alone(dtype: type) -> None:
    wanted = _ranged([7, 3, 5], [7, 3, 3], [7, 5, 5], dtype)
    assert output_error("max", [np.array([7, 5, 3], dtype)], [wanted]) == 0
    for wrong in ([7, 6, 3], [8, 5, 3]):
        assert output_error("max", [np.array(wrong, dtype)], [wanted]) == math.inf


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.uint8, np.int8])
def test_small_numbers_are_measured_from_their_range_too(dtype: type) -> None:
    wanted = _ranged([8, 4, 16], [8, 2, 16], [8, 6, 16], dtype)
    for second, error in ((2, 0), (5, 0), (0, 2 / 16), (8, 2 / 16)):
        assert output_error("max", [np.array([8, second, 16], dtype)], [wanted]) == error


def test_tied_truth_value_is_right_either_way() -> None:
    wanted = Ranged(*(np.array(a) for a in ([True, False], [True, False], [True, True])))
    assert output_error("max", [np.array([True, True])], [wanted]) == 0
    assert output_error("max", [np.array([False, True])], [wanted]) == math.inf


@pytest.mark.parametrize(
    ("value", "low", "high", "own", "counted"),
    [
        (-np.inf, -np.inf, 2.0, -np.inf, -np.inf),
        (-np.inf, -np.inf, 2.0, 1.0, -np.inf),
        (-np.inf, -np.inf, 2.0, 5.0, 5.0),
        (1.0, -np.inf, 2.0, -np.inf, 1.0),
        (1.0, 0.0, 2.0, np.inf, np.inf),
        (1.0, 0.0, 2.0, 2.5, 1.5),
    ],
)
def test_a_tie_may_have_infinite_bounds(
    value: float, low: float, high: float, own: float, counted: float
) -> None:
    arrays = (np.array([number, 0.0], np.float32) for number in (value, low, high))
    judged = Ranged(*arrays).judged(np.array([own, 0.0], np.float32))
    np.testing.assert_array_equal(judged, np.array([counted, 0.0], np.float32))

"""Weights rounded with regard to each other."""

from __future__ import annotations

import numpy as np
import pytest

from collage.backends.quantization.error_feedback import LARGEST, fed_back

Array = np.ndarray


def weights_of(inputs: int, channels: int, seed: int = 0) -> tuple[Array, Array]:
    weights = np.random.default_rng(seed).standard_normal((inputs, channels)).astype(np.float32)
    return weights, np.abs(weights).max(axis=0) / LARGEST


def inputs_of(inputs: int, rows: int, seed: int = 1) -> Array:
    """Rows whose numbers go together, as activations do, with a mean."""
    rng = np.random.default_rng(seed)
    few = rng.standard_normal((rows, max(1, inputs // 4)))
    rows_of = few @ rng.standard_normal((few.shape[1], inputs)) + 0.3 * rng.standard_normal(
        (rows, inputs)
    )
    return np.maximum(rows_of, 0).astype(np.float32)


def gram_of(rows: Array) -> Array:
    return rows.T @ rows / np.float32(len(rows))


def nearest(weights: Array, steps: Array) -> Array:
    return np.rint(weights / steps)


def one_by_one(weights: Array, steps: Array, gram: Array) -> Array:
    """GPTQ as its paper has it: what a weight missed is passed on by the inverse of those that are left."""
    moments = np.diagonal(gram)
    damped = gram.astype(np.float64) + 0.1 * moments.mean() * np.eye(len(gram))
    left, wanted = list(np.argsort(-moments, kind="stable")), weights.astype(np.float64)
    found = np.empty(weights.shape)
    while left:
        inverse = np.linalg.inv(damped[np.ix_(left, left)])
        first, rest = left[0], left[1:]
        found[first] = np.clip(np.rint(wanted[first] / steps), -LARGEST, LARGEST)
        missed = (wanted[first] - found[first] * steps) / inverse[0, 0]
        wanted[rest] -= inverse[1:, :1] * missed
        left = rest
    return found


@pytest.mark.parametrize("inputs", [1, 7, 32, 33, 100])
def test_error_feedback_equals_the_inverse(inputs: int) -> None:
    weights, steps = weights_of(inputs, 5)
    gram = gram_of(inputs_of(inputs, 400))
    found = fed_back(weights, steps, gram)
    assert found.dtype == np.int8 and found.shape == weights.shape
    # Single precision decides a few that lie between two steps.
    assert np.mean(found != one_by_one(weights, steps, gram)) <= 0.02


@pytest.mark.parametrize(("rows", "share"), [(40, 0.95), (400, 0.75), (2000, 0.75)])
def test_sums_over_unseen_inputs_err_less(rows: int, share: float) -> None:
    weights, steps = weights_of(128, 16)
    inputs = inputs_of(128, 4000)
    seen, unseen = inputs[:rows], inputs[2000:]
    ours = fed_back(weights, steps, gram_of(seen)) * steps
    plain = nearest(weights, steps) * steps
    errors = [np.abs(unseen @ (found - weights)).mean() for found in (ours, plain)]
    assert errors[0] < share * errors[1]
    shifts = [np.abs((unseen @ (found - weights)).mean(axis=0)).mean() for found in (ours, plain)]
    assert shifts[0] < 0.5 * shifts[1]


def test_without_anything_in_common_it_is_the_nearest() -> None:
    weights, steps = weights_of(64, 8)
    gram = np.diag(np.random.default_rng(0).uniform(0.1, 5, 64)).astype(np.float32)
    np.testing.assert_array_equal(fed_back(weights, steps, gram), nearest(weights, steps))
    np.testing.assert_array_equal(fed_back(weights, steps, 0 * gram), nearest(weights, steps))


def test_whole_steps_stay_as_they_are() -> None:
    whole = np.random.default_rng(0).integers(-LARGEST, LARGEST + 1, (50, 6)).astype(np.float32)
    found = fed_back(whole * 0.25, np.full(6, 0.25, np.float32), gram_of(inputs_of(50, 300)))
    np.testing.assert_array_equal(found, whole)


def test_a_weight_of_zero_stays_zero() -> None:
    weights, steps = weights_of(32, 5)
    weights[::3] = 0
    found = fed_back(weights, steps, gram_of(inputs_of(32, 400)))
    assert not found[::3].any()
    assert (found != nearest(weights, steps)).any()

"""Digests in the artifact: they catch wrong values, keep right ones, and survive being stored."""

from __future__ import annotations

import numpy as np
import pytest

from collage.artifact.artifact import make_verification
from collage.artifact.verification import (
    ValueDigest,
    Verification,
    VerificationError,
    digest_values,
    input_hashes,
)
from collage.backends.numerics.comparison import Ranged


def _value(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _verification(value: np.ndarray, tolerance: float) -> Verification:
    inputs = ({"x": "0" * 64},)
    return Verification((0,), inputs, digest_values([{"y": value}]), {"y": tolerance})


def test_the_same_value_passes_after_a_round_trip_through_text() -> None:
    value = _value(1, 3, 50, 50)
    stored = Verification.from_text(_verification(value, 1e-6).to_text())
    assert stored.error_of(0, "y", value) == 0.0


def test_wrong_channel_is_seen_though_few_elements_are_kept() -> None:
    value = _value(2, 64, 56, 56)
    wrong = value.copy()
    wrong[17] = 0
    assert _verification(value, 1e-3).error_of(0, "y", wrong) > 1e-3


def test_noise_below_the_tolerance_passes() -> None:
    value = _value(3, 1000)
    assert 0 < _verification(value, 1e-2).error_of(0, "y", value * np.float32(1.001)) < 2e-3


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_value_that_is_not_finite_fails(wrong: float) -> None:
    value = _value(4, 100)
    bad = value.copy()
    bad[:] = wrong
    assert not _verification(value, 0.5).error_of(0, "y", bad) <= 0.5


def test_another_shape_fails() -> None:
    assert _verification(_value(5, 4, 5), 0.5).error_of(0, "y", _value(5, 5, 4)) == float("inf")


def test_values_that_were_not_kept_are_not_judged() -> None:
    assert _verification(_value(6, 4), 1e-3).error_of(0, "other", _value(7, 4)) == 0.0


def test_integers_text_and_empty_tensors_are_kept() -> None:
    for value in (
        np.arange(10),
        np.array(["a", "b"], dtype=object),
        np.zeros((0, 3), np.float32),
        np.array(3.5, np.float32),
        np.array([True, False]),
    ):
        digest = ValueDigest.from_json(ValueDigest.of(value).as_json())
        assert digest.error_of(value) == 0.0
    assert ValueDigest.of(np.arange(10)).error_of(np.arange(10) + 1) == 1
    text = np.array(["a", "b"], dtype=object)
    assert ValueDigest.of(text).error_of(np.array(["a", "c"], dtype=object)) == 0.5


def test_integers_of_8_bits_are_numbers() -> None:
    value = np.array([100, -50, 3], np.int8)
    digest = ValueDigest.from_json(ValueDigest.of(value).as_json())
    assert digest.error_of(np.array([101, -50, 3], np.int8)) == pytest.approx(1 / 100)


def test_damaged_text_is_a_clear_error() -> None:
    for text in ("", "{}", "[1]", '{"seeds": 1}'):
        with pytest.raises(VerificationError, match="damaged"):
            Verification.from_text(text)


def test_input_hashes_tell_inputs_apart() -> None:
    one, two = input_hashes({"x": _value(1, 3)}), input_hashes({"x": _value(2, 3)})
    assert one != two
    assert one == input_hashes({"x": _value(1, 3)})


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_tied_elements_verify_nothing_and_others_do(dtype: type) -> None:
    value = np.arange(100).astype(dtype)
    swapped, wrong = value.copy(), value.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    wrong[7] = 90
    ranged = Ranged(value, np.minimum(value, swapped), np.maximum(value, swapped))
    kept = Verification((0,), ({},), digest_values([{"y": ranged}]), {"y": 1e-3})
    stored = Verification.from_text(kept.to_text())
    assert stored.error_of(0, "y", swapped) == 0
    assert stored.error_of(0, "y", wrong) >= 0.01
    strict = Verification((0,), ({},), digest_values([{"y": value}]), {"y": 1e-3})
    assert strict.error_of(0, "y", swapped) >= 0.01


def test_tolerance_allows_no_wrong_label_but_the_observed_share() -> None:
    """A tolerance for numbers allows no other label, except as many as the tuning saw."""
    labels = np.arange(1000) % 7
    outputs = [{"labels": labels, "y": _value(8, 9)}]
    strict = make_verification((0,), [{}], outputs, {}, 0.1)
    wrong = labels.copy()
    wrong[0] = 6
    assert strict.tolerance["y"] == 0.1
    assert strict.error_of(0, "labels", wrong) > strict.tolerance["labels"]
    observed = {"labels": strict.error_of(0, "labels", wrong)}
    seen = make_verification((0,), [{}], outputs, observed, 0.1)
    assert seen.error_of(0, "labels", wrong) <= seen.tolerance["labels"] < 0.1
    assert seen.error_of(0, "labels", np.zeros_like(labels)) > seen.tolerance["labels"]

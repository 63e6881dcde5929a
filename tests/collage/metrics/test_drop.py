"""Intervals of drops, and how many samples prove one."""

from __future__ import annotations

import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.accuracy.evaluation import Check
from collage.metrics.drop import Bound, compare
from collage.metrics.intervals import (
    bootstrap_upper,
    difference_upper,
    samples_for_share,
    share_lower,
    share_upper,
)
from collage.metrics.labels import read_labels
from collage.metrics.names import parse_metric
from collage.partitioner.errors import BadInputError


@pytest.mark.parametrize("total", [1, 20, 299, 5000])
def test_intervals_of_shares_have_their_closed_forms(total: int) -> None:
    assert share_upper(0, total) == pytest.approx(1 - 0.05 ** (1 / total), abs=1e-9)
    assert share_upper(total, total) == 1.0
    assert share_lower(0, total) == pytest.approx(0.0, abs=1e-9)
    assert share_lower(total, total) == pytest.approx(0.05 ** (1 / total), abs=1e-9)
    assert share_upper(total - 1, total) == pytest.approx(0.95 ** (1 / total), abs=1e-9)


def test_the_interval_of_a_share_covers_as_it_says() -> None:
    """By the definition: a share at the upper end gives so few failures in one of twenty times."""
    upper = share_upper(3, 50)
    drawn = np.random.default_rng(0).binomial(50, upper, 200_000)
    assert np.mean(drawn <= 3) == pytest.approx(0.05, abs=0.003)


@pytest.mark.slow
@pytest.mark.parametrize("confidence", [0.95, 0.975, 0.9875, 0.99375])
def test_the_interval_of_a_difference_covers_as_it_says(confidence: float) -> None:
    """Every pair of counts with its probability, for shares of which more is lost than gained."""
    total, most = 1000, 40
    counts = np.arange(most)
    factorials = np.array([math.lgamma(k + 1) for k in counts])
    uppers = [[difference_upper(a, b, total, confidence) for b in counts] for a in counts]
    ends = np.array(uppers) * total

    def chances(mean: float) -> np.ndarray:
        return np.asarray(np.exp(counts * math.log(mean) - mean - factorials))

    for lost in (*np.arange(0.1, 6, 0.1), *np.arange(6, 16, 0.5)):
        for gained in (1e-9, 0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 13.0):
            if gained <= lost:
                both = np.outer(chances(lost), chances(gained))
                covered = both[ends >= lost - gained].sum() + 1 - both.sum()
                assert covered >= confidence, (lost, gained)


def test_the_interval_of_a_difference_is_narrow_where_many_changed() -> None:
    assert difference_upper(0, 0, 1000) == pytest.approx(3.05e-3, abs=1e-5)
    assert difference_upper(20, 20, 1000) < 0.012
    assert share_upper(20, 1000) - share_lower(20, 1000) > 0.015
    assert difference_upper(0, 300, 1000) == 0.0
    assert difference_upper(1000, 0, 1000) == pytest.approx(1.0)


def test_299_samples_without_failure_prove_one_percent() -> None:
    assert samples_for_share(0.0, 0.01) == 299
    assert samples_for_share(0.01, 0.01) is None
    found = samples_for_share(0.005, 0.01)
    assert found is not None and found > 299


@pytest.mark.parametrize(
    ("share", "limit", "needed"),
    [(2 / 201, 0.01, 10_851_435), (0.4999, 0.5, None), (0.0099, 0.01, 2_690_000)],
)
def test_needed_numbers_near_the_bound_come_at_once(
    share: float, limit: float, needed: int | None
) -> None:
    """The normal approximation is z² p (1 - p) / (limit - p)²."""
    begin_s = time.process_time()
    found = samples_for_share(share, limit)
    assert time.process_time() - begin_s < 2.0  # of the processor, however busy it is
    assert found == (None if needed is None else pytest.approx(needed, rel=0.02))


@pytest.mark.parametrize(("count", "total"), [(3, 50), (450, 500), (5000, 10_000)])
def test_the_upper_end_has_the_probability_that_was_asked_for(count: int, total: int) -> None:
    """The sum of all terms at the upper end is what is left of the confidence."""
    for confidence in (0.95, 0.999):
        upper = share_upper(count, total, confidence)
        logs = [
            math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1)
            + k * math.log(upper) + (total - k) * math.log1p(-upper)
            for k in range(count + 1)
        ]  # fmt: skip
        assert sum(map(math.exp, logs)) == pytest.approx(1 - confidence, rel=1e-6)


def test_a_bootstrap_of_a_mean_is_near_the_normal_interval() -> None:
    values = np.random.default_rng(1).normal(0.0, 1.0, 400)
    upper = bootstrap_upper(lambda drawn: float(values[drawn].mean()), len(values))
    assert upper == pytest.approx(values.mean() + 1.645 * values.std() / 20, abs=0.02)
    wider = bootstrap_upper(lambda drawn: float(values[drawn].mean()), len(values), 0.99995)
    assert wider == pytest.approx(values.mean() + 3.891 * values.std() / 20, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "has_labels", "before", "after"),
    [
        ("top1", False, [(1, 1)] * 200, [(0, 1)] + [(1, 1)] * 199),
        ("top1", True, [(1, 1)] * 200, [(0, 1)] + [(1, 1)] * 199),
        ("text", True, [(0, 10)] * 200, [(4, 10)] * 3 + [(0, 10)] * 197),
        ("snr", True, [(30.0, 1)] * 200, [(29.0, 1), (30.0, 1)] * 100),
    ],
)
def test_more_confidence_is_a_wider_interval_and_more_samples(
    name: str, has_labels: bool, before: list[Any], after: list[Any]
) -> None:
    drops = [
        compare(parse_metric(name), before, after, 0.6, has_labels, confidence)
        for confidence in (0.95, 0.975, 0.999)
    ]
    uppers = [drop.upper for drop in drops]
    assert uppers == sorted(set(uppers))
    assert len({drop.worse for drop in drops}) == 1
    needed = [drop.needed or 0 for drop in drops]
    assert needed == sorted(needed)


def test_agreement_is_proven_with_299_samples() -> None:
    metric = parse_metric("top1")
    few = compare(metric, [(1, 1)] * 100, [(1, 1)] * 100, 0.01, has_labels=False)
    assert few.is_kept and not few.is_proven and few.needed == 299
    many = compare(metric, [(1, 1)] * 300, [(1, 1)] * 300, 0.01, has_labels=False)
    assert many.is_proven


def test_gains_make_up_for_losses_where_there_are_labels() -> None:
    before = [(1, 1)] * 900 + [(0, 1)] * 100
    after = [(0, 1)] * 10 + [(1, 1)] * 950 + [(0, 1)] * 40
    drop = compare(parse_metric("top1"), before, after, 0.01, has_labels=True)
    assert drop.worse == pytest.approx(-0.05)
    assert drop.is_proven
    lost = compare(parse_metric("top1"), before, [(0, 1)] * 50 + before[50:], 0.01, has_labels=True)
    assert not lost.is_kept and lost.needed is None


@pytest.mark.slow
def test_few_changed_samples_prove_nothing_by_a_bootstrap() -> None:
    metric = parse_metric("text")
    same = compare(metric, [(0, 10)] * 50, [(0, 10)] * 50, 0.01, has_labels=False)
    assert same.worse == 0.0 and not same.is_proven
    assert same.needed is not None and 299 <= same.needed <= 310
    assert compare(metric, [(0, 10)] * 300, [(0, 10)] * 300, 0.01, has_labels=False).is_proven
    some = [(1, 10)] * 4 + [(0, 10)] * 396
    drop = compare(metric, [(0, 10)] * 400, some, 0.01, has_labels=False)
    assert drop.worse == pytest.approx(0.001) and drop.is_proven


def test_gains_beside_few_losses_can_be_proven() -> None:
    """Two lines of forty got worse and three better: more lines like these would prove it."""
    before = [(2, 10)] * 40
    after = [(4, 10)] * 2 + [(0, 10)] * 3 + [(2, 10)] * 35
    drop = compare(parse_metric("text"), before, after, 0.008, has_labels=True)
    assert drop.worse < 0 and not drop.is_proven
    assert drop.needed is not None and drop.needed > 40
    more = compare(parse_metric("text"), before * 8, after * 8, 0.008, has_labels=True)
    assert more.is_proven


def test_less_than_twenty_samples_prove_nothing() -> None:
    metric = parse_metric("snr")
    few = compare(metric, [(30.0, 1)] * 5, [(29.9, 1)] * 5, 1.0, has_labels=True)
    assert few.upper == math.inf and few.needed == 20
    assert compare(metric, [(30.0, 1)] * 40, [(29.9, 1)] * 40, 1.0, has_labels=True).is_proven


def test_a_score_that_is_no_number_keeps_nothing() -> None:
    drop = compare(parse_metric("perplexity"), [(1.0, 1)], [(math.nan, 1)], 1.0, has_labels=True)
    assert not drop.is_kept


def test_bounds_are_relative_or_absolute() -> None:
    top1, perplexity, snr = map(parse_metric, ("top1", "perplexity", "snr"))
    assert Bound(max_drop=0.01).allowed(top1, 0.8) == pytest.approx(0.008)
    assert Bound(at_least=0.75).allowed(top1, 0.8) == pytest.approx(0.05)
    assert Bound(at_most=12.0).allowed(perplexity, 10.0) == pytest.approx(2.0)
    for bounds in ({}, {"max_drop": 0.1, "at_least": 0.5}):
        with pytest.raises(BadInputError, match="one bound"):
            Bound(**bounds)
    for bound, metric, reference, match in (
        (Bound(at_most=1.0), top1, 0.8, "at_least or max_drop"),
        (Bound(at_least=0.9), top1, 0.8, "the model itself has 0.8"),
        (Bound(max_drop=0.01), top1, 0.0, "belong together"),
        (Bound(max_drop=0.01), snr, 100.0, "give at_least"),
        (Bound(max_drop=0.01), snr, -3.0, "smallest score that passes"),
        (Bound(max_drop=0.01), parse_metric("text"), -0.2, "smallest score that passes"),
    ):
        with pytest.raises(BadInputError, match=match):
            bound.allowed(metric, reference)


@pytest.mark.parametrize("wrong", [5, 1.0, 0.0, -0.1, math.nan, "1%", True])
def test_a_relative_drop_lies_between_zero_and_one(wrong: Any) -> None:
    for kind in (Bound, partial(Check, len)):
        with pytest.raises(BadInputError, match=r"between 0 and 1|is a number"):
            kind(max_drop=wrong)
    with pytest.raises(BadInputError, match="is a number"):
        Bound(at_least=math.inf)


def test_labels_are_read_by_sample(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.array([3, 4]))
    assert [int(label["labels"]) for label in read_labels(tmp_path / "y.npy", 2)] == [3, 4]
    np.savez(tmp_path / "y.npz", boxes=np.zeros((2, 3, 4)), classes=np.zeros((2, 3)))
    assert read_labels(tmp_path / "y.npz", 2)[1]["boxes"].shape == (3, 4)
    with pytest.raises(BadInputError, match="2 labels, and there are 5"):
        read_labels(tmp_path / "y.npy", 5)
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    for name in ("bad.npy", "missing.npy"):
        with pytest.raises(BadInputError, match="cannot be read"):
            read_labels(tmp_path / name, 1)

"""How much worse a model does its task than the reference, on the same samples, and how sure that is.

The interval is one-sided, of 95 % unless another confidence is asked for. A share of right rows has Clopper
and Pearson's; where labels are given, so that samples are gained too, Tango's. Other metrics have a bootstrap
over samples. Where few samples changed, a bootstrap is too sure; then one more changed sample is assumed to be
lost as a whole.

Invariant: a drop that is proven lies within the bound at the upper end of its interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np

from collage.metrics.intervals import (
    CONFIDENCE,
    bootstrap_upper,
    difference_upper,
    samples_for_share,
    share_upper,
)
from collage.metrics.metric import Item, Metric
from collage.partitioner.errors import BadInputError

# A share of samples that is just the bound keeps it.
_ROUNDING = 1e-12
# A bootstrap of fewer samples proves nothing.
_FEWEST = 20
# Where as many samples changed, a bootstrap knows what changes there are.
_FEW_CHANGED = 10
_TOO_MANY = 10**8
# Of a standard error: draws, and the share of a sample that may always have changed.
_DRAWS, _HALF = 30, 0.5


def check_bounds(max_drop: object, at_least: object, at_most: object) -> None:
    """Make sure that exactly one bound is given, and that it can be kept.

    Raises:
        BadInputError: none or several are given, or one is no number that makes sense.
    """
    given = [value for value in (max_drop, at_least, at_most) if value is not None]
    if len(given) != 1:
        raise BadInputError("an evaluation needs one bound: max_drop, at_least or at_most")
    (said,) = given
    bound = float(said) if isinstance(said, Real) and not isinstance(said, bool) else math.nan
    if not math.isfinite(bound):
        raise BadInputError(f"a bound of an evaluation is a number, not {said!r}")
    if max_drop is not None and not 0 < bound < 1:
        raise BadInputError(
            f"max_drop is a share of the model's own score, so it lies between 0 and 1, and {bound:g} does not; give "
            "0.01 for 1 %, or at_least or at_most for the score itself"
        )


@dataclass(frozen=True)
class Bound:
    """What a plan's score must keep; exactly one is given.

    Raises:
        BadInputError: none or several are given, or one is no number that makes sense.
    """

    max_drop: float | None = None  # relative to the score of the reference
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        check_bounds(self.max_drop, self.at_least, self.at_most)

    def allowed(self, metric: Metric, reference: float) -> float:
        """By how much a score may be worse than that of the reference.

        Raises:
            BadInputError: the bound is not of this metric, or the reference itself does not keep it.
        """
        if self.max_drop is not None:
            return _relative(metric, reference, self.max_drop)
        limit = self.at_least if self.at_least is not None else self.at_most
        assert limit is not None
        if (self.at_least is not None) != metric.higher_is_better:
            wanted = "at_least" if metric.higher_is_better else "at_most"
            raise BadInputError(f"evaluate={metric.name} is bounded by {wanted} or max_drop")
        allowed = metric.worse(reference, limit)
        if allowed < 0:
            raise BadInputError(
                f"evaluate={metric.name}: the model itself has {reference:.6g} on these samples, and "
                f"{limit:g} is asked for; give a bound that it keeps, or max_drop"
            )
        return allowed


def _relative(metric: Metric, reference: float, max_drop: float) -> float:
    if metric.name == "snr" and reference >= 100.0:
        raise BadInputError(
            "evaluate=snr without labels compares with the model itself, whose noise is zero: give "
            "at_least (decibels, as 30) instead of max_drop, or labels"
        )
    if not reference > 0:
        raise BadInputError(
            f"evaluate={metric.name}: the model itself has {reference:.6g} on these samples, so a "
            f"relative drop means nothing; {_instead(metric)}check that labels and samples belong together"
        )
    return max_drop * reference


def _instead(metric: Metric) -> str:
    """What to give in place of a relative drop, where the score of a good model may be zero or less."""
    return "" if metric.is_positive else "give at_least (the smallest score that passes), or "


@dataclass(frozen=True)
class Drop:
    """A drop, in units of the metric."""

    reference: float  # score of the reference
    score: float  # of the plan
    worse: float  # by how much the plan is worse; negative where it is better
    upper: float  # the upper end of the interval of that
    allowed: float
    samples: int
    needed: int | None  # samples that would prove it were the drop as it is; None where none would

    @property
    def is_kept(self) -> bool:
        """Whether the estimate keeps the bound."""
        return self.worse <= self.allowed + _ROUNDING

    @property
    def is_proven(self) -> bool:
        """Whether the whole interval keeps the bound."""
        return self.upper <= self.allowed + _ROUNDING


def compare(
    metric: Metric,
    before: Sequence[Item],
    after: Sequence[Item],
    allowed: float,
    has_labels: bool,
    confidence: float = CONFIDENCE,
) -> Drop:
    """The drop from the reference to a plan.

    Args:
        metric: of the items.
        before: what each sample contributes with the reference.
        after: the same with the plan.
        allowed: by how much it may be worse.
        has_labels: whether the truth is other than the reference, so that a plan may be better.
        confidence: of the interval.
    """
    reference, score = metric.score(before), metric.score(after)
    worse = metric.worse(reference, score)
    samples = len(before)
    if not math.isfinite(worse):
        return Drop(reference, score, math.inf, math.inf, allowed, samples, None)
    if metric.is_binary and all(item[1] == 1 for item in before):
        upper, needed = _of_shares(before, after, allowed, has_labels, confidence)
    else:
        upper, needed = _of_samples(metric, before, after, worse, allowed, confidence)
    return Drop(reference, score, worse, max(upper, worse), allowed, samples, needed)


def _of_shares(
    before: Sequence[Item],
    after: Sequence[Item],
    allowed: float,
    has_labels: bool,
    confidence: float,
) -> tuple[float, int | None]:
    pairs = list(zip(before, after, strict=True))
    lost = sum(a[0] > b[0] for a, b in pairs)
    gained = sum(a[0] < b[0] for a, b in pairs)
    samples = len(pairs)
    if not has_labels:
        upper = share_upper(lost, samples, confidence)
        return upper, samples_for_share(lost / samples, allowed, confidence)
    upper = difference_upper(lost, gained, samples, confidence)
    number = samples
    while number < _TOO_MANY and (lost - gained) / samples < allowed:
        more_lost, more_gained = (math.ceil(count * number / samples) for count in (lost, gained))
        if difference_upper(more_lost, more_gained, number, confidence) <= allowed:
            return upper, number
        number = math.ceil(1.1 * number)
    return upper, None


def _of_samples(
    metric: Metric,
    before: Sequence[Item],
    after: Sequence[Item],
    worse: float,
    allowed: float,
    confidence: float,
) -> tuple[float, int | None]:
    samples = len(before)

    def cautious(more: float) -> float:
        """Of so many times the samples, an upper end for few that changed."""
        return _cautious(sum(losses) * more, changed * more, round(samples * more), confidence)

    losses = [metric.loss(a, b) for a, b in zip(before, after, strict=True)]
    changed = sum(loss > 0 for loss in losses)
    upper = worse
    needed = samples
    if samples < _FEWEST:
        upper, needed = math.inf, _FEWEST
    elif changed or worse:
        upper = bootstrap_upper(
            lambda drawn: metric.worse(
                metric.score([before[i] for i in drawn]), metric.score([after[i] for i in drawn])
            ),
            samples,
            confidence,
        )
        needed = _scaled(samples, upper - worse, allowed - worse)
    if metric.is_bounded:
        upper = max(upper, cautious(1.0))
        while cautious(needed / samples) > allowed:
            needed = math.ceil(1.02 * needed)
            if needed > _TOO_MANY:
                return upper, None
    return upper, needed if worse < allowed and needed <= _TOO_MANY else None


def _cautious(lost: float, changed: float, samples: int, confidence: float) -> float:
    """An upper end where few samples changed, and one more may be lost as a whole; else 0."""
    if changed >= _FEW_CHANGED:
        return 0.0
    return (lost + 1) / (changed + 1) * share_upper(math.ceil(changed), samples, confidence)


def _scaled(samples: int, half: float, room: float) -> int:
    """How many samples make an interval's half so wide; it shrinks with the root of their number."""
    return max(_FEWEST, math.ceil(samples * (half / room) ** 2)) if room > 0 else samples


def standard_error(metric: Metric, before: Sequence[Item], after: Sequence[Item]) -> float:
    """The standard error of a drop as `Metric.distance` has it; of a bounded metric at least that of half a sample.

    Raises:
        BadInputError: the metric needs more samples.
    """
    count = len(before)
    if metric.is_binary and all(item[1] == 1 for item in before):
        moved = sum(a[0] != b[0] for a, b in zip(before, after, strict=True))
        return math.sqrt(max(moved, _HALF)) / count
    random = np.random.default_rng(0)
    found = []
    for _ in range(_DRAWS):
        drawn = random.integers(0, count, count)
        try:
            scores = [metric.score([items[i] for i in drawn]) for items in (before, after)]
        except BadInputError:
            continue  # of few samples one was drawn all the time
        found.append(metric.distance(*scores))
    if len(found) < 2:
        raise BadInputError(f"{metric.name} needs more samples")
    return max(float(np.std(found)), _HALF / count if metric.is_bounded else 0.0)

"""Share of rows whose class is among the largest scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage.metrics.metric import Array, Arrays, Item, Metric, ratio_score
from collage.partitioner.errors import BadInputError


@dataclass(frozen=True)
class TopK(Metric):
    """Share of rows whose class is among the k largest scores; rows lie along the last axis.

    A row of one number is the probability of class 1, so that one half decides.
    """

    k: int = 1

    name = "topk"
    summary = "share of rows whose class is among the k largest scores (`topk=5`)"
    is_binary = True

    def item(self, outputs: Arrays, reference: Arrays, label: Arrays | None) -> Item:
        scores, wanted = _rows(self.chosen(outputs)), self.chosen(reference)
        self._check_column(wanted)
        truth = _rows(wanted).argmax(axis=1) if label is None else self.only_label(label).reshape(-1)
        if truth.dtype.kind not in "iu" or len(truth) != len(scores):
            raise BadInputError(
                f"evaluate={self.name} needs one whole number for each of {len(scores)} rows of scores, "
                f"not {truth.dtype.name} of shape {truth.shape}"
            )
        if truth.min(initial=0) < 0 or truth.max(initial=0) >= scores.shape[1]:
            raise BadInputError(
                f"evaluate={self.name}: labels lie between {truth.min()} and {truth.max()}, and the "
                f"output has {scores.shape[1]} classes"
            )
        right = int(np.count_nonzero(_rank(scores, truth) < self.k))
        return right, len(truth)

    def score(self, items: Sequence[Item]) -> float:
        return ratio_score(items)

    def _check_column(self, wanted: Array) -> None:
        """Make sure that a lone column of the reference has probabilities; less exact models may miss the range."""
        is_lone = wanted.ndim == 0 or wanted.shape[-1] == 1
        if is_lone and wanted.size and (wanted.min() < 0 or wanted.max() > 1):
            raise BadInputError(
                f"evaluate={self.name} reads a lone column as the probability of class 1, and here it goes from "
                f"{wanted.min():.4g} to {wanted.max():.4g}, as before a sigmoid; name an output of probabilities as "
                f"{self.name}@OUTPUT, or judge the model by a function of your own (docs/accuracy.md)"
            )


@dataclass(frozen=True)
class Top1(TopK):
    """Share of rows whose largest score is at their class."""

    name = "top1"
    summary = "share of rows whose largest score is at their class"


def _rows(scores: Array) -> Array:
    rows = scores.reshape(-1, scores.shape[-1] if scores.ndim else 1).astype(np.float64)
    # One column is the probability of yes.
    return np.concatenate([1.0 - rows, rows], axis=1) if rows.shape[1] == 1 else rows


def _rank(scores: Array, truth: Array) -> Array:
    """How many classes come before the true one; of equal scores the first class comes first."""
    own = scores[np.arange(len(truth)), truth][:, None]
    places = np.arange(scores.shape[1])[None, :]
    before = (scores > own) | ((scores == own) & (places < truth[:, None]))
    # NaN is no score, so its row is wrong.
    return np.asarray(np.where(np.isnan(own[:, 0]), scores.shape[1], before.sum(axis=1)))

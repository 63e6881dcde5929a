"""Metrics that small errors change by small amounts: perplexity, signal to noise, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage.metrics.metric import Array, Arrays, Item, Metric, ratio_score
from collage.partitioner.errors import BadInputError

# More is no difference that anybody hears or sees; float32 itself has about 150.
_MOST_DB = 100.0


@dataclass(frozen=True)
class Perplexity(Metric):
    """The exponential of the mean negative log-likelihood of tokens; less is better.

    Labels are the tokens that each position predicts, so they are shifted already; negative ones are
    left out. Without labels they are the most likely tokens of the reference.
    """

    name = "perplexity"
    summary = "exponential of the mean negative log-likelihood of the tokens; less is better"
    higher_is_better = False
    is_bounded = False

    def item(self, outputs: Arrays, reference: Arrays, label: Arrays | None) -> Item:
        logits = _rows(self.chosen(outputs, least_axes=2))
        if label is None:
            tokens = _rows(self.chosen(reference, least_axes=2)).argmax(axis=1)
        else:
            tokens = self.only_label(label).reshape(-1)
        if tokens.dtype.kind not in "iu" or len(tokens) != len(logits):
            raise BadInputError(
                f"evaluate=perplexity needs one token for each of {len(logits)} positions, not "
                f"{tokens.dtype.name} of shape {tokens.shape}"
            )
        if tokens.max(initial=0) >= logits.shape[1]:
            raise BadInputError(
                f"evaluate=perplexity: a label is {tokens.max()}, and there are {logits.shape[1]} tokens"
            )
        counted = tokens >= 0
        logits, tokens = logits[counted], tokens[counted]
        top = logits.max(axis=1, initial=-np.inf)
        total = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        return float((total - logits[np.arange(len(tokens)), tokens]).sum()), len(tokens)

    def score(self, items: Sequence[Item]) -> float:
        return float(np.exp(ratio_score(items)))

    def distance(self, before: float, after: float) -> float:
        return float(np.log(after / before))


@dataclass(frozen=True)
class Snr(Metric):
    """The power of the truth over that of the difference, in decibels, in the mean over samples."""

    name = "snr"
    summary = "power of the truth over that of the difference in decibels, at most 100"
    is_bounded = False
    is_positive = False

    def item(self, outputs: Arrays, reference: Arrays, label: Arrays | None) -> Item:
        made = self.chosen(outputs).astype(np.float64)
        truth = self.chosen(reference) if label is None else self.only_label(label)
        if truth.size != made.size:
            raise BadInputError(
                f"evaluate=snr compares an output of shape {made.shape} with a truth of shape {truth.shape}"
            )
        wanted = truth.astype(np.float64).reshape(made.shape)
        noise = float(np.sum((made - wanted) ** 2))
        signal = float(np.sum(wanted**2))
        if not np.isfinite(noise):
            return -_MOST_DB, 1
        if noise <= signal * 10 ** (-_MOST_DB / 10):
            return _MOST_DB, 1
        return (max(-_MOST_DB, 10 * np.log10(signal / noise)) if signal else -_MOST_DB), 1

    def score(self, items: Sequence[Item]) -> float:
        return ratio_score(items)

    def distance(self, before: float, after: float) -> float:
        """Powers of noise add up, decibels do not."""
        return float(10 ** (-after / 10) - 10 ** (-before / 10))


@dataclass(frozen=True)
class Embedding(Metric):
    """Spearman's rank correlation between cosine similarities of all pairs of samples and the true ones.

    Labels are embeddings, one for each sample. Of an output with three axes the mean over the middle one is the
    embedding. Last axes of size 1 do not count, as a global pooling leaves them.
    """

    name = "embedding"
    summary = "rank correlation of the cosine similarities of all pairs of samples"
    is_bounded = False

    def item(self, outputs: Arrays, reference: Arrays, label: Arrays | None) -> Item:
        truth = self._vector(reference) if label is None else self.only_label(label)
        return _unit(self._vector(outputs)), _unit(truth)

    def score(self, items: Sequence[Item]) -> float:
        made, truth = (np.stack([item[i] for item in items]) for i in (0, 1))
        pairs = np.triu_indices(len(items), 1)
        same = (truth @ truth.T)[pairs] >= 1 - 1e-12  # a sample drawn twice says nothing
        found, wanted = ((v @ v.T)[pairs][~same] for v in (made, truth))
        if len(found) < 2:
            raise BadInputError("evaluate=embedding compares pairs, so it needs at least three samples")
        return spearman(found, wanted)

    def loss(self, before: Item, after: Item) -> float:
        return float(not np.array_equal(before[0], after[0]))

    def _vector(self, outputs: Arrays) -> Array:
        given = self.chosen(outputs, least_axes=1)
        array = given
        while array.ndim > 2 and array.shape[-1] == 1:
            array = array[..., 0]
        if array.ndim > 3 and array.size > array.shape[-1]:
            raise BadInputError(
                f"evaluate=embedding finds no embedding in an output of shape {given.shape}: it reads (batch, size), or "
                "(batch, steps, size) in the mean over steps; name a pooled output as embedding@OUTPUT, or judge the "
                "model by a function of your own (docs/accuracy.md)"
            )
        if array.ndim > 2:
            array = array.reshape(-1, array.shape[-1]).mean(axis=0)
        if array.size < 2:
            raise BadInputError(
                f"evaluate=embedding needs vectors, and an output of shape {given.shape} has one number a sample; name "
                "another output as embedding@OUTPUT"
            )
        return array


def spearman(one: Array, other: Array) -> float:
    """Spearman's rank correlation; equal values have their mean rank."""
    a, b = _ranks(one), _ranks(other)
    a, b = a - a.mean(), b - b.mean()
    lengths = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / lengths if lengths else 0.0


def _ranks(values: Array) -> Array:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2.0)[place]


def _unit(array: Array) -> Array:
    flat = array.astype(np.float64).reshape(-1)
    length = float(np.linalg.norm(flat))
    return flat / length if length else flat


def _rows(logits: Array) -> Array:
    return logits.reshape(-1, logits.shape[-1]).astype(np.float64)

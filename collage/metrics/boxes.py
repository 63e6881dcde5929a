"""Mean average precision of boxes, over overlaps (IoU) of 0.5 to 0.95, as COCO defines it.

Boxes are `x1, y1, x2, y2`. Three forms of outputs are read:

* outputs whose names hold `box`, `score` and, where there are classes, `label` or `class`;
* one output of six columns: box, score, class;
* a map of probabilities (batch, 1, height, width), as of text detectors (`probability_map`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage.metrics.metric import Array, Arrays, Item, Metric
from collage.metrics.probability_map import boxes_of_map
from collage.partitioner.errors import BadInputError

OVERLAPS = np.arange(0.5, 0.96, 0.05)
_RECALLS = np.linspace(0.0, 1.0, 101)
_MOST_BOXES = 100
# Boxes of the reference that count as truth where there are no labels.
_LEAST_SCORE = 0.5


@dataclass(frozen=True)
class Detections:
    """Boxes (n, 4) with their scores and classes (n,)."""

    boxes: Array
    scores: Array
    classes: Array


@dataclass(frozen=True)
class _Matches:
    """Of one sample: each box's score, class and, per overlap, whether it is right; the truth's classes."""

    scores: Array
    classes: Array
    right: Array  # (overlaps, boxes)
    truth: Array


@dataclass(frozen=True)
class MeanAveragePrecision(Metric):
    """Mean over classes and overlaps of the average precision."""

    name = "map"
    summary = "mean average precision of boxes over overlaps of 0.5 to 0.95, as COCO defines it"

    def item(self, outputs: Arrays, reference: Arrays, label: Arrays | None) -> Item:
        if label is None:
            found = self.detections(reference)
            sure = found.scores >= _LEAST_SCORE
            truth, classes = found.boxes[sure], found.classes[sure]
        else:
            truth, classes = _labeled(label)
        return matches(self.detections(outputs), truth, classes)

    def score(self, items: Sequence[Item]) -> float:
        return mean_average_precision(items)

    def loss(self, before: Item, after: Item) -> float:
        changed = before.right.sum() != after.right.sum() or len(before.scores) != len(after.scores)
        return float(changed)

    def detections(self, outputs: Arrays) -> Detections:
        """The boxes in a model's outputs.

        Raises:
            BadInputError: the outputs have none of the known forms.
        """
        by_part = {
            part: value
            for part, words in (("box", ("box",)), ("score", ("score",)), ("class", ("label", "class")))
            for name, value in outputs.items()
            if any(word in name.lower() for word in words)
        }
        if not self.output and {"box", "score"} <= by_part.keys():
            boxes = np.asarray(by_part["box"], dtype=np.float64).reshape(-1, 4)
            scores = np.asarray(by_part["score"], dtype=np.float64).reshape(-1)
            classes = np.asarray(by_part.get("class", np.zeros(len(boxes)))).reshape(-1)
            if len(boxes) == len(scores) == len(classes):
                return Detections(boxes, scores, classes.astype(np.int64))
        found = self.chosen(outputs, least_axes=2)
        if found.ndim == 4 and found.shape[:2] == (1, 1):
            boxes, scores = boxes_of_map(found[0, 0])
            return Detections(boxes, scores, np.zeros(len(boxes), np.int64))
        if found.shape[-1] == 6:
            rows = found.reshape(-1, 6).astype(np.float64)
            return Detections(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int64))
        raise BadInputError(
            "evaluate=map reads outputs named like boxes, scores and labels, one output of six columns "
            f"(box, score, class), or a map (1, 1, height, width), not {found.shape}; judge other models by "
            "a function of your own (docs/accuracy.md)"
        )


def _labeled(label: Arrays) -> tuple[Array, Array]:
    boxes = label.get("boxes")
    if boxes is None or boxes.shape[-1] != 4:
        raise BadInputError(
            "evaluate=map needs labels as .npz with boxes (samples, count, 4), padded with -1, and "
            "perhaps classes (samples, count)"
        )
    boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    classes = np.asarray(label.get("classes", np.zeros(len(boxes)))).reshape(-1).astype(np.int64)
    there = ~(boxes == -1).all(axis=1)
    return boxes[there], classes[there]


def matches(found: Detections, truth: Array, classes: Array) -> _Matches:
    """Which boxes of one sample are right: the best scored first, each takes the nearest free true box."""
    order = np.argsort(-found.scores, kind="stable")[:_MOST_BOXES]
    boxes, labels = found.boxes[order], found.classes[order]
    near = overlap(boxes, truth)
    near[labels[:, None] != classes[None, :]] = -1.0
    right = np.zeros((len(OVERLAPS), len(boxes)), dtype=bool)
    for row, least in enumerate(OVERLAPS):
        free = np.ones(len(truth), dtype=bool)
        for i in range(len(boxes)):
            own = np.where(free, near[i], -1.0)
            if len(truth) and own.max() >= least - 1e-9:
                free[own.argmax()] = False
                right[row, i] = True
    return _Matches(found.scores[order], labels, right, classes)


def overlap(one: Array, other: Array) -> Array:
    """Intersection over union of boxes, of shape (len(one), len(other))."""
    low = np.maximum(one[:, None, :2], other[None, :, :2])
    high = np.minimum(one[:, None, 2:], other[None, :, 2:])
    common = np.prod(np.clip(high - low, 0, None), axis=2)
    areas = [np.prod(np.clip(b[:, 2:] - b[:, :2], 0, None), axis=1) for b in (one, other)]
    total = areas[0][:, None] + areas[1][None, :] - common
    return np.asarray(np.divide(common, total, out=np.zeros_like(common), where=total > 0))


def mean_average_precision(items: Sequence[_Matches]) -> float:
    """The mean over classes that are there; 0 where there is none."""
    scores = np.concatenate([item.scores for item in items])
    labels = np.concatenate([item.classes for item in items])
    right = np.concatenate([item.right for item in items], axis=1)
    truth = np.concatenate([item.truth for item in items])
    order = np.argsort(-scores, kind="stable")
    labels, right = labels[order], right[:, order]
    found = [_average(right[:, labels == c], int((truth == c).sum())) for c in np.unique(truth)]
    return float(np.mean(found)) if found else 0.0


def _average(right: Array, count: int) -> float:
    """Average precision of one class in the mean over overlaps."""
    hits = np.cumsum(right, axis=1)
    places = np.arange(1, right.shape[1] + 1)
    total = 0.0
    for row in hits:
        precision = np.maximum.accumulate((row / places)[::-1])[::-1]
        at = np.searchsorted(row / count, _RECALLS - 1e-12)
        total += float(np.append(precision, 0.0)[at].mean())
    return total / len(hits)

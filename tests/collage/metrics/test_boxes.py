"""Mean average precision, as COCO defines it."""

from __future__ import annotations

import numpy as np
import pytest

from collage.metrics.boxes import Detections, matches, mean_average_precision, overlap
from collage.metrics.names import parse_metric
from collage.metrics.probability_map import boxes_of_map, connected
from collage.partitioner.errors import BadInputError

_ONE, _TWO, _FAR = [0.0, 0.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0], [50.0, 50.0, 60.0, 60.0]


def _detections(boxes: list[list[float]], scores: list[float]) -> Detections:
    return Detections(np.array(boxes), np.array(scores), np.zeros(len(boxes), np.int64))


def test_overlap_of_boxes() -> None:
    found = overlap(np.array([_ONE, [5.0, 0.0, 15.0, 10.0]]), np.array([_ONE, _TWO]))
    np.testing.assert_allclose(found, [[1.0, 0.0], [1 / 3, 0.0]])


def test_precision_is_averaged_at_101_recalls() -> None:
    """Right, wrong, right: precision is 1 up to a recall of one half, then two thirds."""
    found = _detections([_ONE, _FAR, _TWO], [0.9, 0.8, 0.7])
    item = matches(found, np.array([_ONE, _TWO]), np.zeros(2, np.int64))
    assert mean_average_precision([item]) == pytest.approx((51 * 1.0 + 50 * 2 / 3) / 101)


def test_a_box_counts_at_the_overlaps_that_it_reaches() -> None:
    shifted = [0.0, 0.0, 10.0, 7.0]  # an overlap of 0.7: right at five of ten thresholds
    item = matches(_detections([shifted], [0.9]), np.array([_ONE]), np.zeros(1, np.int64))
    assert mean_average_precision([item]) == pytest.approx(0.5)


def test_a_true_box_is_found_once_and_only_by_its_class() -> None:
    twice = matches(_detections([_ONE, _ONE], [0.9, 0.8]), np.array([_ONE]), np.zeros(1, np.int64))
    assert twice.right[:, 0].all() and not twice.right[:, 1].any()
    other = matches(_detections([_ONE], [0.9]), np.array([_ONE]), np.ones(1, np.int64))
    assert mean_average_precision([other]) == 0.0


def test_forms_of_outputs_are_read_alike() -> None:
    metric = parse_metric("map")
    label = {"boxes": np.array([_ONE, [-1.0] * 4]), "classes": np.array([0, -1])}
    six = {"out": np.array([[[*_ONE, 0.9, 0.0]]], np.float32)}
    named = {
        "pred_boxes": np.array([_ONE], np.float32),
        "scores": np.array([0.9], np.float32),
        "labels": np.array([0]),
    }
    for outputs in (six, named):
        assert metric.score([metric.item(outputs, outputs, label)]) == pytest.approx(1.0)
        assert metric.score([metric.item(outputs, outputs, None)]) == pytest.approx(1.0)
    with pytest.raises(BadInputError, match="six columns"):
        metric.item({"out": np.zeros((1, 3), np.float32)}, {}, label)
    with pytest.raises(BadInputError, match=r"boxes \(samples"):
        metric.item(six, six, {"labels": np.zeros(3)})


def test_regions_of_a_map_are_connected_and_grown() -> None:
    mask = np.zeros((8, 12), bool)
    mask[1:3, 1:9] = True
    mask[3:5, 1:2] = mask[3:5, 8:9] = True  # a bridge: one region
    mask[6:8, 3:6] = True
    assert sorted(int((r[:, 2] - r[:, 1]).sum()) for r in connected(mask)) == [6, 20]
    probabilities = np.zeros((40, 100), np.float32)
    probabilities[10:20, 20:80] = 0.9
    boxes, scores = boxes_of_map(probabilities)
    grown = 1.6 * 600 / 140
    np.testing.assert_allclose(boxes, [[20 - grown, 10 - grown, 80 + grown, 20 + grown]])
    np.testing.assert_allclose(scores, [0.9], rtol=1e-6)
    assert len(boxes_of_map(np.zeros((5, 5), np.float32))[0]) == 0


def test_a_map_without_text_scores_against_none() -> None:
    metric = parse_metric("map")
    empty = {"y": np.zeros((1, 1, 8, 8), np.float32)}
    label = {"boxes": np.array([_ONE])}
    assert metric.score([metric.item(empty, empty, label)]) == 0.0

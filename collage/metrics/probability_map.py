"""Boxes of a map of probabilities, as text detectors make it.

A detector of this kind (DB) learns text regions that are shrunk by a distance; boxes are grown by it
again: area times a ratio over circumference.

Source: Liao et al. 2020, "Real-time Scene Text Detection with Differentiable Binarization".
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray

_LEAST_PROBABILITY = 0.3
_GROWTH = 1.6
_LEAST_SIDE = 3


def boxes_of_map(probabilities: Array) -> tuple[Array, Array]:
    """Boxes (n, 4) around connected regions of a map (height, width), and their mean probability (n,)."""
    height, width = probabilities.shape
    regions = connected(probabilities > _LEAST_PROBABILITY)
    boxes, scores = [], []
    for runs in regions:
        x1, x2 = runs[:, 1].min(), runs[:, 2].max()
        y1, y2 = runs[:, 0].min(), runs[:, 0].max() + 1
        if min(x2 - x1, y2 - y1) < _LEAST_SIDE:
            continue
        total = sum(float(probabilities[y, a:b].sum()) for y, a, b in runs)
        grown = _GROWTH * (x2 - x1) * (y2 - y1) / (2.0 * (x2 - x1 + y2 - y1))
        boxes.append(
            [
                max(0.0, x1 - grown),
                max(0.0, y1 - grown),
                min(float(width), x2 + grown),
                min(float(height), y2 + grown),
            ]
        )
        scores.append(total / float((runs[:, 2] - runs[:, 1]).sum()))
    return np.array(boxes, dtype=np.float64).reshape(-1, 4), np.array(scores, dtype=np.float64)


def connected(mask: Array) -> list[Array]:
    """Regions of neighbors (four of each): their runs as rows of `y, start, end`."""
    edges = np.diff(np.pad(mask.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    rows, starts = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1]
    parent = list(range(len(rows)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first = np.searchsorted(rows, np.arange(mask.shape[0] + 1))
    for y in range(1, mask.shape[0]):
        above, here = first[y - 1], first[y]
        while above < first[y] and here < first[y + 1]:
            if starts[above] < ends[here] and starts[here] < ends[above]:
                parent[root(here)] = root(above)
            if ends[above] < ends[here]:
                above += 1
            else:
                here += 1
    groups: dict[int, list[int]] = {}
    for i in range(len(rows)):
        groups.setdefault(root(i), []).append(i)
    runs = np.stack([rows, starts, ends], axis=1)
    return [runs[members] for members in groups.values()]

"""A few shapes that stand for many: weighted medoids over the logarithms of sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

# A tuning measures each representative shape.
MOST_SHAPES = 5
# More different shapes than this are thinned before they are compared with each other.
MOST_COMPARED = 512

Point = tuple[Mapping[str, int], float]


def representatives(
    points: Sequence[Point], most: int = MOST_SHAPES, keep: Sequence[Point] = ()
) -> list[Point]:
    """At most so many of the points, each with the weight of those that are nearest to it.

    The sum of weighted distances to the nearest one is small: it is improved until no exchange of one
    point lowers it.

    Args:
        points: sizes by dimension, all of the same dimensions, with a weight.
        most: how many may stay.
        keep: points that must.

    Returns:
        The points ascending by their sizes.
    """
    names, places, weights, fixed = _merged(points, keep)
    held = _medoids(places, weights, max(most, fixed), fixed)
    return [(dict(zip(names, place, strict=True)), weight) for place, weight in sorted(held.items())]


def thinned(points: Sequence[Point], keep: Sequence[Point] = ()) -> list[Point]:
    """The heaviest points, each with the weight of those that are nearest to it, and those to keep."""
    names, places, weights, _ = _merged(points, keep)
    near, mass = _compared(places, weights)
    return [
        (dict(zip(names, place, strict=True)), float(weight))
        for place, weight in zip(places[: len(near)], mass, strict=True)
    ]


def _merged(
    points: Sequence[Point], keep: Sequence[Point]
) -> tuple[list[str], list[tuple[int, ...]], list[float], int]:
    """Names, different places and their weights, those to keep first and then by weight, and how many to keep."""
    weights: dict[tuple[int, ...], float] = {}
    names = list(points[0][0])
    for sizes, weight in points:
        place = tuple(sizes[name] for name in names)
        weights[place] = weights.get(place, 0.0) + weight
    kept = {tuple(sizes[name] for name in names) for sizes, _ in keep}
    places = sorted(weights, key=lambda place: (place not in kept, -weights[place], place))
    return names, places, [weights[place] for place in places], len(kept)


def _at(places: list[tuple[int, ...]]) -> np.ndarray:
    # Half a unit keeps size 0 at a finite place.
    return np.log(np.array(places, dtype=np.float64) + 0.5)


def _compared(places: list[tuple[int, ...]], weights: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Where the first places are, with the weights of all that are nearest to each."""
    at = _at(places)
    near, mass = at[:MOST_COMPARED], np.zeros(min(len(at), MOST_COMPARED))
    for point, weight in zip(at, weights, strict=True):
        mass[np.abs(near - point).sum(axis=1).argmin()] += weight
    return near, mass


def _medoids(
    places: list[tuple[int, ...]], weights: list[float], most: int, fixed: int
) -> dict[tuple[int, ...], float]:
    """The medoids, of which the first places are fixed, with the weights of their clusters."""
    if len(places) <= most:
        return dict(zip(places, weights, strict=True))
    near, mass = _compared(places, weights)
    distances = np.abs(near[:, None, :] - near[None, :, :]).sum(axis=2)
    chosen = _exchanged(distances, mass, _begun(distances, mass, most, fixed), fixed)
    clusters = distances[:, chosen].argmin(axis=1)
    return {
        places[medoid]: float(mass[clusters == position].sum())
        for position, medoid in enumerate(chosen)
    }


def _begun(distances: np.ndarray, mass: np.ndarray, most: int, fixed: int) -> list[int]:
    """The fixed points, then each time the one that lowers the sum of distances most."""
    chosen = list(range(fixed))
    nearest = distances[:, chosen].min(axis=1) if chosen else np.full(len(mass), distances.max() + 1)
    while len(chosen) < most:
        sums = (np.minimum(distances, nearest[:, None]) * mass[:, None]).sum(axis=0)
        sums[chosen] = np.inf
        chosen.append(int(sums.argmin()))
        nearest = np.minimum(nearest, distances[:, chosen[-1]])
    return chosen


def _exchanged(distances: np.ndarray, mass: np.ndarray, chosen: list[int], fixed: int) -> list[int]:
    """The points after every exchange of one for another that lowers the sum of distances."""
    best = float((distances[:, chosen].min(axis=1) * mass).sum())
    improved = True
    while improved:
        improved = False
        for position in range(fixed, len(chosen)):
            others = chosen[:position] + chosen[position + 1 :]
            rest = distances[:, others].min(axis=1) if others else np.full(len(mass), np.inf)
            sums = (np.minimum(distances, rest[:, None]) * mass[:, None]).sum(axis=0)
            sums[others] = np.inf
            if sums.min() < best * (1 - 1e-9):
                best, chosen[position], improved = float(sums.min()), int(sums.argmin()), True
    return chosen

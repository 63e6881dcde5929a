"""What measured regions of a target say about regions that were not measured.

Terms: a region's *ratio* is what it took alone, its border apart, over what the profile says of its
nodes. Ratios differ from 1 together, when the profile was taken at a slow moment, and by place, where a
runtime fuses other things.

Invariant: expectations are optimistic. Disturbance makes a timing longer, so a low quantile of ratios
counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from collage.partitioner.search.milp import Floats, Ints

_LOW = 0.1
_ENOUGH_REGIONS = 3
_LOW_BORDER = 0.3
_LEAST_FACTOR, _MOST_FACTOR = 0.2, 5.0
_LEAST_RATIO = 0.1


@dataclass
class RegionRatios:
    """Expectations of one target."""

    profile_us: Floats  # per node what it takes inside the whole model
    _regions: dict[bytes, tuple[Ints, float, float]] = field(default_factory=dict)
    _fitted: tuple[Floats, float] | None = None

    def add(self, nodes: Ints, border_us: float, latency_us: float) -> None:
        """Add a region that was measured alone.

        Args:
            nodes: it holds, ascending.
            border_us: a first guess at what cutting it out costs.
            latency_us: what it took.
        """
        self._regions[nodes.tobytes()] = nodes, border_us, latency_us
        self._fitted = None

    def expected_us(self, nodes: Ints, border_us: float) -> float:
        """An optimistic estimate of a region's latency."""
        if self._fitted is None:
            self._fitted = self._fit()
        node_us, border_factor = self._fitted
        return float(node_us[nodes].sum()) + border_factor * border_us

    def _fit(self) -> tuple[Floats, float]:
        """Per node what it may take, and the factor on first guesses at borders."""
        if not self._regions:
            return self.profile_us, 1.0
        profiled = np.array([self.profile_us[nodes].sum() for nodes, _, _ in self._regions.values()])
        borders = np.array([border for _, border, _ in self._regions.values()])
        taken = np.array([latency for _, _, latency in self._regions.values()])
        factor = 1.0
        if len(taken) >= _ENOUGH_REGIONS:
            seen = np.quantile((taken - profiled) / borders, _LOW_BORDER)
            factor = float(np.clip(seen, _LEAST_FACTOR, _MOST_FACTOR))
        profiled = np.maximum(profiled, 1e-3)
        ratios = np.maximum((taken - factor * borders) / profiled, _LEAST_RATIO)
        # A region that is mostly border says little of its nodes.
        weights = profiled / (profiled + borders)
        everywhere = _low(np.append(ratios, 1.0), np.append(weights, 1.0)[:, None])
        shares = np.zeros((len(ratios) + 1, len(self.profile_us)))
        for row, (nodes, _, _) in enumerate(self._regions.values()):
            shares[row, nodes] = weights[row]
        # The ratio of all regions counts as one more region with every node.
        shares[-1] = 1.0
        return self.profile_us * _low(np.append(ratios, everywhere), shares), factor


def _low(values: Floats, weights: Floats) -> Floats:
    """A low quantile of the values by each column of weights."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order], axis=0)
    at: Floats = values[order][(reached < _LOW * reached[-1] - 1e-12).sum(axis=0)]
    return at

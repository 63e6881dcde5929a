"""Optimistic estimates of what was not measured, from profiles of what was; what other sizes say where they are known.

Terms: a *profile* says what each node takes inside a region that ran on a target. A runtime fuses
nodes, so the time of one executed step is shared among its nodes by weight: heavy operators take nearly
all. Time that the profiler could not map to nodes is spread over the region in proportion.

Invariant: an estimate only decides what to measure next. It is never a cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from collage.backends.contract import OpTime
from collage.costs.region_ratios import RegionRatios
from collage.partitioner.candidate import bits
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.op_kind import OpKind, kind_of
from collage.partitioner.graph.sub_graph import SubGraph
from collage.partitioner.target import Target

_LIGHT_WEIGHT = 1.0
_HEAVY_WEIGHT = 50.0
_HEAVY = (OpKind.OUT_FUSABLE, OpKind.OPAQUE)
_LEAST_US = 0.5
# First guess at a border: a call, and reading or writing its values once outside the caches.
_CALL_US = 30.0
_US_PER_MIB = 60.0


def node_times_us(
    index: GraphIndex, nodes: int, latency_us: float, ops: Sequence[OpTime]
) -> tuple[dict[int, float], float]:
    """A region's measured latency shared among its nodes (bitset) by the profiler's steps.

    Returns:
        Time of each node in microseconds, which add up to `latency_us`, and the fraction of the
        profiled time that could not be mapped.
    """
    members = bits(nodes)
    by_name = {index.nodes[i].name: i for i in members}
    times = dict.fromkeys(members, 0.0)
    unmapped = 0.0
    for op in ops:
        known = [by_name[name] for name in op.nodes if name in by_name]
        if not known:
            unmapped += op.latency_us
            continue
        weights = [_weight(index, i) for i in known]
        for i, weight in zip(known, weights, strict=True):
            times[i] += op.latency_us * weight / sum(weights)
    mapped = sum(times.values())
    if mapped <= 0:
        total = sum(_weight(index, i) for i in members)
        return {i: latency_us * _weight(index, i) / total for i in members}, 1.0
    return {i: t * latency_us / mapped for i, t in times.items()}, unmapped / (mapped + unmapped)


def _weight(index: GraphIndex, node: int) -> float:
    info = index.nodes[node]
    return _HEAVY_WEIGHT if kind_of(info.domain, info.op_type) in _HEAVY else _LIGHT_WEIGHT


class Estimates:
    """Per target what each node takes in context, and from that what a region may take.

    An estimate is the sum of the region's nodes, plus a call and the values at its border. How far both
    are off on a target is learned as regions are measured (`collage.costs.region_ratios`). Where the same
    region was measured at other sizes, these say it instead (`collage.costs.other_sizes`).
    """

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self._times: dict[Target, dict[int, float]] = {}
        self._ratios: dict[Target, RegionRatios] = {}
        self._moving: dict[int, float] = {}
        self._guessed: set[Target] = set()
        self._at_other_sizes: dict[tuple[int, Target], float] = {}

    def spread(self, target: Target, latency_us: float) -> None:
        """Share the whole graph's latency on a target without a profiler among the nodes.

        The fastest profiled targets give the shares; regions that are measured later correct them.
        """
        scale = latency_us / sum(self.shares_us())
        self._times[target] = {i: share * scale for i, share in enumerate(self.shares_us())}
        self._guessed.add(target)
        self._ratios.clear()

    def rescale(self, target: Target, factor: float) -> None:
        """Scale a profile that was taken at another pace of the machine; spread times stay."""
        if target in self._times and target not in self._guessed:
            self._times[target] = {i: us * factor for i, us in self._times[target].items()}
            self._ratios.clear()

    def shares_us(self) -> list[float]:
        """Per node what it takes on the target that runs it fastest."""
        return [max(self._elsewhere(i), _LEAST_US) for i in range(len(self._index.nodes))]

    def learn(self, target: Target, times_us: Mapping[int, float]) -> None:
        """Add the times of a region's nodes; what was seen in a larger region stays."""
        known = self._times.get(target, {})
        small, large = sorted((known, dict(times_us)), key=len)
        self._times[target] = {**small, **large}
        self._ratios.clear()

    def learn_region(self, target: Target, nodes: int, latency_us: float) -> None:
        """Add what a region took alone."""
        if target in self._guessed:
            times = self._times[target]
            inside_us = max(latency_us - self._border_us(nodes), _LEAST_US)
            scale = inside_us / sum(times[i] for i in bits(nodes))
            times.update({i: times[i] * scale for i in bits(nodes)})
            self._ratios.pop(target, None)
        elif nodes != self._index.all_nodes:
            self._of(target).add(np.array(bits(nodes)), self._border_us(nodes), latency_us)

    def expect(self, expected_us: Mapping[tuple[int, Target], float]) -> None:
        """Add what regions may take by the same ones at other sizes."""
        self._at_other_sizes.update(expected_us)

    def times_us(self, target: Target) -> Mapping[int, float] | None:
        """Per node its time in context; None where the target did not run the whole graph."""
        times = self._times.get(target, {})
        return times if len(times) == len(self._index.nodes) else None

    def profiles_us(self) -> dict[Target, Mapping[int, float]]:
        """Per target that was profiled on the whole graph what each node takes."""
        whole = {t: times for t, times in self._times.items() if len(times) == len(self._index.nodes)}
        return {target: times for target, times in whole.items() if target not in self._guessed}

    def bound_us(self, nodes: int, target: Target) -> float:
        """An optimistic estimate of a region's latency."""
        if (nodes, target) in self._at_other_sizes:
            return max(self._at_other_sizes[nodes, target], _LEAST_US)
        expected_us = self._of(target).expected_us(np.array(bits(nodes)), self._border_us(nodes))
        return max(expected_us, _LEAST_US)

    def _of(self, target: Target) -> RegionRatios:
        """The ratios of a target; a node never seen there takes what its fastest target takes."""
        if target not in self._ratios:
            known = self._times.get(target, {})
            profile = [known.get(i, self._elsewhere(i)) for i in range(len(self._index.nodes))]
            self._ratios[target] = RegionRatios(np.array(profile, float))
        return self._ratios[target]

    def _border_us(self, nodes: int) -> float:
        return _CALL_US + self.moving_us(nodes)

    def moving_us(self, nodes: int) -> float:
        """First guess at the time that a region's inputs and outputs take outside the caches."""
        if nodes not in self._moving:
            sub_graph = SubGraph(self._index, nodes)
            crossing = [n for n in sub_graph.inputs if n in self._index.producer]
            crossing += [n for n in sub_graph.outputs if n in self._index.consumers]
            size = sum(self._index.values[name].size_bytes for name in crossing)
            self._moving[nodes] = _US_PER_MIB * size / (1 << 20)
        return self._moving[nodes]

    def _elsewhere(self, node: int) -> float:
        return min((t[node] for t in self._times.values() if node in t), default=0.0)

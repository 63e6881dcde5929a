"""Optimistic estimates of what was not measured, from profiles of what was.

Terms: a *profile* says for each node how long it took inside a region that really ran on a target. A
runtime fuses and renames nodes, so one executed step stands for several nodes; its time is shared
among them by weight (heavy kinds of operator take nearly all). Time that the profiler could not map
to nodes is spread over the region in proportion, and its share is remembered so that it can be said.

Invariant: an estimate is only ever used to decide what to measure next. It is never a cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backends.contract import OpTime
from partitioner.candidate import bits
from partitioner.graph_index import GraphIndex
from partitioner.op_kind import OpKind, kind_of
from partitioner.target import Target

_LIGHT_WEIGHT = 1.0
_HEAVY_WEIGHT = 50.0
_HEAVY = (OpKind.OUT_FUSABLE, OpKind.OPAQUE)


def node_times_us(
    index: GraphIndex, nodes: int, latency_us: float, ops: Sequence[OpTime]
) -> tuple[dict[int, float], float]:
    """Share a region's measured latency among its nodes by what the profiler saw.

    Args:
        index: the graph.
        nodes: the region (bitset).
        latency_us: the region's latency measured without the profiler.
        ops: the profiler's steps.

    Returns:
        Time of each node in microseconds (they add up to `latency_us`), and the fraction of the
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
    """Per target what each node takes in context, and from that what a region may take at best.

    Args:
        index: the graph.
        optimism: factor below one by which an estimate is lowered, so that regions which may turn out
            better than their profile says are measured too.
    """

    def __init__(self, index: GraphIndex, optimism: float = 0.92) -> None:
        self._index = index
        self._optimism = optimism
        self._times: dict[Target, dict[int, float]] = {}

    def learn(self, target: Target, times_us: Mapping[int, float]) -> None:
        """Take in the times of a region's nodes; what was seen in a larger region stays."""
        known = self._times.get(target, {})
        small, large = sorted((known, dict(times_us)), key=len)
        self._times[target] = {**small, **large}

    def bound_us(self, nodes: int, target: Target) -> float:
        """An optimistic estimate for a region; nodes never seen on the target count as elsewhere."""
        times = self._times.get(target, {})
        return self._optimism * sum(times.get(i, self._elsewhere(i)) for i in bits(nodes))

    def node_us(self, node: int, target: Target) -> float | None:
        """What a node took in context on a target, where that is known."""
        return self._times.get(target, {}).get(node)

    def _elsewhere(self, node: int) -> float:
        return min((t[node] for t in self._times.values() if node in t), default=0.0)

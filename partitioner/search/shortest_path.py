"""Best covers among candidates that are one run of the line each: shortest paths, in linear time.

Runs of one topological order never wait for each other, so these covers can always run. Their distances
also price every position, which bounds from below what any other candidate can gain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from collage.partitioner.search.candidate_arrays import CandidateArrays
from collage.partitioner.search.milp import Floats, Ints
from collage.partitioner.search.task import Chosen, Task

_POWERS = range(-6, 7, 2)


@dataclass(frozen=True)
class Paths:
    """The shortest paths from the line's begin to its end."""

    # candidates of each path, in the order of the line, the cheapest path first
    plans: tuple[tuple[int, ...], ...]
    costs: tuple[float, ...]  # of each path
    distance: Floats  # per position the cost of the cheapest path to it; infinite where there is none


def shortest_paths(arrays: CandidateArrays, active: Ints, cost_us: Floats, k: int) -> Paths:
    """The k cheapest covers by one-run candidates; none when they do not cover the line."""
    runs = first_runs(arrays, active)
    single = np.flatnonzero(arrays.run_count[active] == 1)
    single = single[np.argsort(arrays.run_end[runs[single]], kind="stable")]
    starts, ends = arrays.run_start[runs[single]], arrays.run_end[runs[single]]
    costs = cost_us[single]
    count = arrays.node_count
    limits = np.searchsorted(ends, np.arange(count + 2))
    best = np.full((count + 1, k), np.inf)
    via = np.full((count + 1, k, 2), -1, np.int64)
    best[0, 0] = 0.0
    for end in range(1, count + 1):
        low, high = limits[end], limits[end + 1]
        if low == high:
            continue
        sums = (best[starts[low:high]] + costs[low:high, None]).ravel()
        taken = np.argsort(sums, kind="stable")[:k] if k > 1 else np.array([np.argmin(sums)])
        best[end, : len(taken)] = sums[taken]
        via[end, : len(taken), 0] = low + taken // k
        via[end, : len(taken), 1] = taken % k
    plans = []
    for rank in range(k):
        if np.isfinite(best[count, rank]):
            plans.append(_trace(via, starts, active[single], count, rank))
    found = best[count, : len(plans)]
    return Paths(tuple(plans), tuple(found.tolist()), best[:, 0])


def first_runs(arrays: CandidateArrays, active: Ints) -> Ints:
    """Per active candidate the number of its first run."""
    return np.searchsorted(arrays.run_owner, active)


def more_paths(task: Task, active: Ints, cost_us: Floats) -> Iterator[Chosen]:
    """Further covers by one-run candidates, for first plans that keep to limits and avoid borders.

    Each class of targets alone, and all of them with ever higher prices on partitions and on budgets.
    """
    arrays, limits = task.arrays, task.constraints
    kind = task.class_of_target[arrays.target_of[active]]
    for one in range(int(kind.max()) + 1) if kind.any() else ():
        alone = kind == one
        yield from shortest_paths(arrays, active[alone], cost_us[alone], 1).plans
    scale = float(np.median(cost_us)) + 1e-3
    weights = []
    if limits.max_partitions is not None or kind.any():
        weights.append(np.ones(len(active)))
    for budget in limits.budgets:
        amounts = np.array(budget.amounts)[active]
        weights.append(amounts * (1.0 / max(float(np.median(amounts)), 1e-30)))
    for weight in weights:
        for power in _POWERS:
            yield from shortest_paths(arrays, active, cost_us + scale * 4.0**power * weight, 1).plans


def price_bound(arrays: CandidateArrays, active: Ints, cost_us: Floats, distance: Floats) -> float:
    """A lower bound on every plan from the prices that shortest paths put on positions.

    A plan costs as much as the shortest path plus the reduced costs of its candidates; of the negative
    ones each position bears an equal share, and the lowest share there bounds it.
    """
    reduced = reduced_costs(arrays, active, cost_us, distance)
    sizes = np.bincount(
        arrays.run_owner, arrays.run_end - arrays.run_start, minlength=len(arrays.candidates)
    )
    lowest = np.zeros(arrays.node_count)
    runs = first_runs(arrays, active)
    for at in np.flatnonzero(reduced < 0):
        share = reduced[at] / sizes[active[at]]
        for run in range(runs[at], runs[at] + arrays.run_count[active[at]]):
            part = slice(arrays.run_start[run], arrays.run_end[run])
            np.minimum(lowest[part], share, out=lowest[part])
    return float(distance[-1] + lowest.sum())


def reduced_costs(arrays: CandidateArrays, active: Ints, cost_us: Floats, distance: Floats) -> Floats:
    """Per active candidate what it costs more than the cheapest paths over the same positions."""
    # A position that no path reaches may have any price; its neighbor's keeps prices finite.
    reached = np.maximum.accumulate(np.where(np.isfinite(distance), np.arange(len(distance)), 0))
    price = distance[reached]
    over = price[arrays.run_end] - price[arrays.run_start]
    spared = np.bincount(arrays.run_owner, over, minlength=len(arrays.candidates))
    return cost_us - spared[active]


def _trace(via: Ints, starts: Ints, candidates: Ints, end: int, rank: int) -> tuple[int, ...]:
    path = []
    while end:
        arc, rank = (int(v) for v in via[end, rank])
        path.append(int(candidates[arc]))
        end = int(starts[arc])
    return tuple(reversed(path))

"""The partitions of a mix: neighbors are compiled together where one target computes both.

Terms as in `collage.accuracy.error_model`. A pair of targets is *mixable* where nodes of both go into
one partition (`Backend.mixes_with`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from collage.backends.registry import backend_of
from collage.partitioner.target import Target

MixablePairs = frozenset[tuple[int, int]]
"""Pairs of targets, by number in either order, that go into one partition."""


@dataclass(frozen=True)
class MixPartition:
    """One partition of a mix."""

    nodes: int  # bitset
    target: int  # its number
    others: int = 0  # those of the nodes that the other target of a pair computes (bitset)

    def on(self, targets: Sequence[Target]) -> Target:
        """The target that it is compiled for."""
        target = targets[self.target]
        return backend_of(target).mix(target, self.nodes, self.others)


def mixable_pairs(targets: Sequence[Target]) -> MixablePairs:
    """The pairs among these targets."""
    pairs = [
        (plain, wide)
        for (plain, one), (wide, other) in itertools.permutations(enumerate(targets), 2)
        if backend_of(other).mixes_with(other, one)
    ]
    return frozenset([*pairs, *((wide, plain) for plain, wide in pairs)])


def partitions_of(
    blocks: Iterable[tuple[int, int]],
    targets: Sequence[Target],
    inside: MixablePairs,
    apart: Collection[int] = (),
) -> list[MixPartition]:
    """Partitions of blocks: neighbors of one target are one, and neighbors of a mixable pair.

    Args:
        blocks: nodes and target of each, in order.
        inside: mixable pairs of them.
        apart: targets whose blocks stay partitions of their own.
    """
    runs: list[list[tuple[int, int]]] = []
    for nodes, target in blocks:
        if runs and target not in apart and _is_one({target, *(t for _, t in runs[-1])}, inside):
            runs[-1].append((nodes, target))
        else:
            runs.append([(nodes, target)])
    return [_part(run, targets) for run in runs]


def _is_one(numbers: set[int], inside: MixablePairs) -> bool:
    return all(pair in inside for pair in itertools.combinations(sorted(numbers), 2))


def _part(run: Sequence[tuple[int, int]], targets: Sequence[Target]) -> MixPartition:
    numbers = {t for _, t in run}  # one, or a mixable pair
    wide = next(t for t in numbers if all(o == t or _takes_in(targets[t], targets[o]) for o in numbers))
    others = sum(nodes for nodes, target in run if target != wide)
    return MixPartition(sum(nodes for nodes, _ in run), wide, others)


def _takes_in(target: Target, other: Target) -> bool:
    return backend_of(target).mixes_with(target, other)

"""What the blocks of a mix become: partitions, with neighbors compiled together where one runtime takes both.

Terms as in `collage.accuracy.error_model`. Two targets go *inside* one partition when one of them writes int8 into the file and the other
is the same without it: then blocks of both are one model, in which those of the other stay float (`collage.backends.quantization.float_nodes`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from collage.backends.registry import backend_of
from collage.partitioner.target import Target

MixablePairs = frozenset[tuple[int, int]]
"""Pairs of targets, by number in either order, that go inside one partition."""


@dataclass(frozen=True)
class MixPartition:
    """What runs as one.

    Args:
        nodes: bitset.
        target: its number.
        kept: those of the nodes that stay float (bitset).
    """

    nodes: int
    target: int
    kept: int = 0

    def on(self, targets: Sequence[Target]) -> Target:
        """The target that it is compiled for."""
        target = targets[self.target]
        return backend_of(target).mix(target, self.nodes, self.kept)


def mixable_pairs(targets: Sequence[Target]) -> MixablePairs:
    """Which of some targets go inside one partition."""
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
    """Neighbors of one target are one part, and neighbors of two that go inside one partition.

    Args:
        blocks: nodes and target of each, in order.
        targets: by number.
        inside: of them.
        apart: targets whose blocks stay parts of their own.
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
    numbers = {t for _, t in run}
    wide = next(t for t in numbers if all(o == t or _takes_in(targets[t], targets[o]) for o in numbers))
    kept = sum(nodes for nodes, target in run if target != wide)
    return MixPartition(sum(nodes for nodes, _ in run), wide, kept)


def _takes_in(target: Target, other: Target) -> bool:
    return backend_of(target).mixes_with(target, other)

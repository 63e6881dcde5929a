"""Padding along one dimension, so that one compiled plan serves all sizes up to a border.

Terms: a *bucket* is a size that inputs are padded to. Requests of all sizes above the next smaller bucket run at it.

Invariant: what padding adds is cut from the outputs. Either a proof says that it changes nothing else
(`collage.partitioner.graph.row_independence`), or the user says that a mask keeps it out.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Padding:
    """How requests are padded.

    Args:
        dim: the dimension.
        buckets: its sizes that plans are compiled for, ascending.
        inputs: the axis of the dimension of each input that has it.
        outputs: of each output that has it the axis, and how many positions there belong to one of the dimension.
        mask: the input that is 0 where padding is; None where a proof needs none.
    """

    dim: str
    buckets: tuple[int, ...]
    inputs: Mapping[str, int]
    outputs: Mapping[str, tuple[int, int]]
    mask: str | None = None

    def bucket(self, size: int) -> int | None:
        """What a size is padded to; None above all buckets, and for no rows at all."""
        position = bisect.bisect_left(self.buckets, size)
        return self.buckets[position] if size > 0 and position < len(self.buckets) else None

    def padded(self, feed: Mapping[str, np.ndarray], size: int, bucket: int) -> dict[str, np.ndarray]:
        """Inputs of a size at a bucket: the last position is repeated, and the mask is 0 there."""
        if size == bucket:
            return dict(feed)
        made = dict(feed)
        for name, axis in self.inputs.items():
            given = feed[name]
            shape = [*given.shape]
            shape[axis] = bucket
            full = np.empty(shape, given.dtype)
            ahead: tuple[slice, ...] = (slice(None),) * axis
            full[(*ahead, slice(size))] = given
            last = given[(*ahead, slice(size - 1, size))]
            full[(*ahead, slice(size, None))] = 0 if name == self.mask else last
            made[name] = full
        return made

    def cut(self, made: Mapping[str, np.ndarray], size: int, bucket: int) -> dict[str, np.ndarray]:
        """Outputs without what padding added, as arrays of their own."""
        if size == bucket:
            return dict(made)
        found = dict(made)
        for name, (axis, group) in self.outputs.items():
            if name in made:
                part = made[name][(*(slice(None),) * axis, slice(size * group))]
                found[name] = np.ascontiguousarray(part)
        return found

    def as_json(self) -> dict[str, Any]:
        """The padding as `from_json` takes it."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Padding:
        """Read what `as_json` made."""
        return cls(
            dim=data["dim"],
            buckets=tuple(data["buckets"]),
            inputs=dict(data["inputs"]),
            outputs={name: (axis, group) for name, (axis, group) in data["outputs"].items()},
            mask=data["mask"],
        )

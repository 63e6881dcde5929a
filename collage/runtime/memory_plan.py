"""Where the values between partitions live: one block of memory, planned once and reused over time.

Two values may share bytes when no step needs both. Values are placed largest first, each at the lowest
offset that is free during its whole life ("greedy by size").

Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collage.partitioner.tensor import TensorSpec

# One cache line, and what every runtime here asks of a buffer that it uses in place.
ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class Life:
    """When a value is needed: from step `first` to step `last`, both included."""

    spec: TensorSpec
    first: int
    last: int


@dataclass(frozen=True)
class MemoryPlan:
    """Offsets into one block of `size_bytes`."""

    offsets: Mapping[str, int]
    size_bytes: int


def plan_memory(lives: Sequence[Life]) -> MemoryPlan:
    """Give every value an offset such that values alive at the same time never overlap."""
    placed: list[tuple[int, int, Life]] = []
    offsets: dict[str, int] = {}
    for life in sorted(lives, key=lambda life: (-life.spec.size_bytes, life.first, life.spec.name)):
        size = _aligned(life.spec.size_bytes)
        start = 0
        for begin, end, other in sorted(placed, key=lambda entry: entry[0]):
            if other.last < life.first or life.last < other.first:
                continue
            if start + size <= begin:
                break
            start = max(start, end)
        placed.append((start, start + size, life))
        offsets[life.spec.name] = start
    return MemoryPlan(offsets, max((end for _, end, _ in placed), default=0))


def allocate(plan: MemoryPlan, lives: Sequence[Life]) -> dict[str, np.ndarray]:
    """One aligned block, and an array into it for each value; text has an array of its own."""
    block = np.zeros(plan.size_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
    base = -block.ctypes.data % ALIGNMENT_BYTES
    return {
        life.spec.name: _view(block, base + plan.offsets[life.spec.name], life.spec) for life in lives
    }


def _view(block: np.ndarray, start: int, spec: TensorSpec) -> np.ndarray:
    if spec.dtype == "object":
        return np.full(spec.static_shape, "", dtype=object)
    flat = block[start : start + spec.size_bytes].view(np.dtype(spec.dtype))
    return flat.reshape(spec.static_shape)


def _aligned(size_bytes: int) -> int:
    # An empty tensor still gets an address of its own: some runtimes refuse a null pointer.
    return max(ALIGNMENT_BYTES, -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)

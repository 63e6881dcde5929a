"""Where the values between partitions live: one block of memory, planned once and reused over time.

Two values may share bytes when no step needs both. Values are placed largest first, each at the lowest
offset that is free during its whole life ("greedy by size").

Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020).
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collage.partitioner.tensor import TensorSpec
from collage.runtime.step import Step

# One cache line, and what every runtime here asks of a buffer that it uses in place.
ALIGNMENT_BYTES = 64
# A block that must grow grows by this at the least, so that ever larger shapes move it a few times only.
_GROWTH = 1.5


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


class Block:
    """Aligned memory that grows; arrays into it stay valid when it does, but then lie in the old memory."""

    def __init__(self) -> None:
        self._memory = np.zeros(0, dtype=np.uint8)
        self.size_bytes = 0

    def reserve(self, size_bytes: int) -> bool:
        """Have at least so many bytes; True when the block moved."""
        if size_bytes <= self.size_bytes:
            return False
        self.size_bytes = max(size_bytes, int(self.size_bytes * _GROWTH))
        self._memory = np.zeros(self.size_bytes + ALIGNMENT_BYTES, dtype=np.uint8)
        return True

    def view(self, offset: int, spec: TensorSpec) -> np.ndarray:
        """The array of a value at an offset; text has an array of its own."""
        if spec.dtype == "object":
            return np.full(spec.static_shape, "", dtype=object)
        start = -self._memory.ctypes.data % ALIGNMENT_BYTES + offset
        flat = self._memory[start : start + spec.size_bytes].view(np.dtype(spec.dtype))
        return flat.reshape(spec.static_shape)


def lives_of(
    steps: Sequence[Step],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
    turns: Sequence[tuple[int, ...]],
) -> list[Life]:
    """When each value is needed, counted in waves: what runs at once shares no memory."""
    end = len(turns)
    wave_of = {step: number for number, wave in enumerate(turns) for step in wave}
    specs = {spec.name: spec for spec in inputs}
    first = {spec.name: -1 for spec in inputs}
    # Graph inputs stay whole until the end, so that a second run does not need to feed them again.
    last = {spec.name: end for spec in inputs}
    for position, step in enumerate(steps):
        wave = wave_of[position]
        for spec in step.outputs:
            specs[spec.name] = spec
            first[spec.name] = wave
            last[spec.name] = wave
        for spec in step.inputs:
            last[spec.name] = max(last[spec.name], wave)
    last |= dict.fromkeys(outputs, end)
    return [Life(spec, first[name], last[name]) for name, spec in specs.items()]


def plan_memory(lives: Sequence[Life]) -> MemoryPlan:
    """Give every value an offset such that values alive at the same time never overlap."""
    placed: list[tuple[int, int, Life]] = []  # by offset
    offsets: dict[str, int] = {}
    for life in sorted(lives, key=lambda life: (-life.spec.size_bytes, life.first, life.spec.name)):
        size = _aligned(life.spec.size_bytes)
        start = 0
        for begin, end, other in placed:
            if other.last < life.first or life.last < other.first:
                continue
            if start + size <= begin:
                break
            start = max(start, end)
        bisect.insort(placed, (start, start + size, life), key=lambda entry: entry[0])
        offsets[life.spec.name] = start
    return MemoryPlan(offsets, max((end for _, end, _ in placed), default=0))


def allocate(plan: MemoryPlan, lives: Sequence[Life], block: Block) -> dict[str, np.ndarray]:
    """An array into a block for each value; the block has room for the plan."""
    return {life.spec.name: block.view(plan.offsets[life.spec.name], life.spec) for life in lives}


def _aligned(size_bytes: int) -> int:
    # An empty tensor still gets an address of its own: some runtimes refuse a null pointer.
    return max(ALIGNMENT_BYTES, -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)

"""A step of a plan: one compiled partition and the values at its border."""

from __future__ import annotations

from dataclasses import dataclass

from collage.backends.contract import Executable
from collage.partitioner.tensor import TensorSpec


@dataclass(frozen=True)
class Step:
    """One compiled partition and the names of the values it reads and makes, in its order."""

    executable: Executable
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def is_static(self) -> bool:
        """True when all its buffers can be bound before the first run."""
        return all(spec.is_static for spec in (*self.inputs, *self.outputs))

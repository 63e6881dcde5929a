"""A compiled sub-model, as every runtime gives one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage.backends.device_memory import DeviceBuffer
from collage.backends.standalone import Standalone
from collage.partitioner.target import HOST_MEMORY
from collage.partitioner.tensor import TensorSpec

Array = np.ndarray


@dataclass(frozen=True)
class OpTime:
    """Time of one step inside a runtime, from its own profiler.

    Args:
        nodes: names of the ONNX nodes that it computes; empty where they are unknown.
        kind: the runtime's own name of the step.
        latency_us: typical time of one execution.
    """

    nodes: tuple[str, ...]
    kind: str
    latency_us: float


class Executable(ABC):
    """A compiled sub-model.

    `bind` names the buffers once; `run` computes from the bound inputs into the bound outputs. Arrays are C-contiguous,
    of the specs' dtype and shape, and stay in place until the next `bind`. Where a spec leaves dimensions free, each
    `bind` may give inputs of another size, also the same array in another shape. The runtime allocates an output given as None (its shape is known only at run
    time, or its array shall be a new one) at each run. In `results` a bound output is that very array. A call raises where
    an output comes in another shape than its array has.
    """

    @abstractmethod
    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        """Use these buffers from now on (zero-copy where the runtime can)."""

    def another(self) -> Executable | None:
        """A second executable that shares the weights and may run at the same time; None where one must be compiled.

        It is bound by itself and closed by itself.
        """
        return None

    def bound_call(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """A call that computes from these arrays into these, whatever is bound in between.

        Many are kept at a time, one for each recent size; after one of them `bind` must be called before `run`.
        """

        def call() -> None:
            self.bind(inputs, outputs)
            self.run()

        return call

    @property
    def domain(self) -> str:
        """The memory domain of `bind_device`; `host` where there is none."""
        return HOST_MEMORY

    def buffer(self, spec: TensorSpec) -> DeviceBuffer:
        """New memory in this domain, for any executable of the domain; not called on the host."""
        raise NotImplementedError(f"{type(self).__name__} has no memory of its own")

    def bind_device(self, inputs: Sequence[DeviceBuffer], outputs: Sequence[DeviceBuffer]) -> None:
        """As `bind`, to buffers of this domain; `results` is then not read."""
        raise NotImplementedError(f"{type(self).__name__} has no memory of its own")

    @abstractmethod
    def run(self) -> None:
        """Compute once, synchronously."""

    @property
    @abstractmethod
    def results(self) -> tuple[Array, ...]:
        """Outputs of the last run, in the order of the sub-model's outputs."""

    @property
    def stated_latency_us(self) -> float | None:
        """The stated time of a call in simulations; None for every real runtime, which is measured."""
        return None

    def standalone(self) -> Standalone | None:
        """What runs it without this package; None where only this package can."""
        return None

    def kept_files(self) -> tuple[Path, ...] | None:
        """The files in the cache that it was loaded from, if any.

        Where they are the same files at the next load, its outputs are not compared with the reference again.
        """
        return None

    @property
    def loads_differ(self) -> bool:
        """True where another load of `kept_files` may compute something else; it is compared on one sample each time."""
        return False

    def profile(self, runs: int) -> list[OpTime]:
        """Run `runs` times under the runtime's own profiler; empty where it has none."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Give back memory and threads."""

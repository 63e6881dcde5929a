"""A backend that writes zeros in a stated time. For tests of search and service, not for use.

Its numbers are wrong by design, so verification refuses it but where zero is right. Measuring finds the
stated time of a call (`-latency_us=250`) without a clock. A memory domain of its own (`-domain=sim:0`)
makes transitions testable without a device.

Source: tinygrad `runtime/ops_null.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from collage.backends.contract import (
    Array,
    Available,
    Backend,
    CompileContext,
    Executable,
    OpTime,
    SubModel,
)
from collage.backends.device_memory import DeviceBuffer
from collage.backends.options import THREADS, Option
from collage.backends.support import predicates
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.target import HOST_MEMORY, Target
from collage.partitioner.tensor import TensorSpec


class NullBackend(Backend):
    """Takes every node of the operators it is told to take, and computes zeros."""

    name = "null"
    style = "graph"
    summary = "Computes zeros in a stated time; for tests only."
    options = (
        THREADS,
        Option("latency_us", "0", "Time of one call in microseconds.", pattern=r"[0-9]+(\.[0-9]+)?"),
        Option("domain", "host", "Memory domain it claims to live in.", pattern="host|[a-z]+:[0-9]+"),
        Option("ops", "all", "Operators it takes, separated by commas, or all.", pattern=r"[\w:.,]+"),
    )

    def probe(self) -> Available:
        return Available("1")

    def memory_domain(self, target: Target) -> str:
        return target.option("domain", HOST_MEMORY)

    def supports(self, index: GraphIndex, node: int, target: Target) -> str | None:
        taken = target.option("ops", "all")
        if taken == "all" or index.nodes[node].op in taken.split(","):
            return None
        return f"-ops of this target does not name {index.nodes[node].op}"

    def compile(self, model: SubModel, target: Target, context: CompileContext) -> Executable:
        for spec in (*model.inputs, *model.outputs):
            predicates.numpy_dtype(spec)
        domain = target.option("domain", HOST_MEMORY)
        return NullExecutable(model, float(target.option("latency_us", "0")), domain)


class SimulatedBuffer(DeviceBuffer):
    """Memory that is called a device's."""

    def __init__(self, spec: TensorSpec, domain: str) -> None:
        super().__init__(spec, domain)
        self.content = np.ones(spec.static_shape, predicates.numpy_dtype(spec))

    def write(self, values: Array) -> None:
        np.copyto(self.content, values)

    def read(self, values: Array) -> None:
        np.copyto(values, self.content)


class NullExecutable(Executable):
    """Fills the bound outputs with zeros and waits until the stated time is over."""

    def __init__(self, model: SubModel, latency_us: float, domain: str = HOST_MEMORY) -> None:
        self._model, self._latency_us = model, latency_us
        static = all(spec.is_static for spec in (*model.inputs, *model.outputs))
        self._domain = domain if static else HOST_MEMORY
        self._outputs: tuple[Array, ...] = ()

    @property
    def domain(self) -> str:
        return self._domain

    def buffer(self, spec: TensorSpec) -> DeviceBuffer:
        return SimulatedBuffer(spec, self._domain)

    def bind_device(self, inputs: Sequence[DeviceBuffer], outputs: Sequence[DeviceBuffer]) -> None:
        self._outputs = tuple(b.content for b in outputs if isinstance(b, SimulatedBuffer))

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        self._outputs = tuple(
            np.zeros([d or 1 for d in spec.shape or ()], predicates.numpy_dtype(spec))
            if output is None
            else output
            for spec, output in zip(self._model.outputs, outputs, strict=True)
        )

    def run(self) -> None:
        end_ns = time.perf_counter_ns() + self._latency_us * 1000
        for output in self._outputs:
            output.fill(0)
        while time.perf_counter_ns() < end_ns:
            pass

    @property
    def stated_latency_us(self) -> float:
        return self._latency_us

    @property
    def results(self) -> tuple[Array, ...]:
        return self._outputs

    def profile(self, runs: int) -> list[OpTime]:
        return [OpTime((), "Null", self._latency_us)]

    def close(self) -> None:
        self._outputs = ()

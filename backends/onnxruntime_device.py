"""ONNX Runtime on a CUDA device: values that stay in the device's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backends.device_memory import HOST, CudaBuffer, DeviceBuffer
from partitioner.tensor import TensorSpec


class OrtCudaBuffer(CudaBuffer):
    """An `OrtValue` on a CUDA device."""

    def __init__(self, spec: TensorSpec, domain: str) -> None:
        import onnxruntime

        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            list(spec.static_shape), np.dtype(spec.dtype), "cuda", number_of(domain)
        )
        super().__init__(spec, domain, value.data_ptr())
        self._value: Any = value

    def write(self, values: np.ndarray) -> None:
        self._value.update_inplace(np.ascontiguousarray(values))

    def read(self, values: np.ndarray) -> None:
        np.copyto(values, self._value.numpy())


class Graph:
    """Runs of a session as one CUDA graph, recorded at the first run after each binding to buffers.

    Values that are given on the host are copied to and from the buffers, since a graph's memory stays in place.
    """

    def __init__(self) -> None:
        self._number = 0
        self._options: Any = None
        self._there: list[tuple[DeviceBuffer, np.ndarray]] = []
        self._back: list[tuple[DeviceBuffer, np.ndarray]] = []

    def renew(self) -> None:
        """Forget the graph: other buffers are bound."""
        import onnxruntime

        self._number += 1
        self._options = onnxruntime.RunOptions()
        self._options.add_run_config_entry("gpu_graph_id", str(self._number))
        self._there, self._back = [], []

    def copied(
        self,
        given: Sequence[DeviceBuffer],
        inputs: Sequence[np.ndarray],
        made: Sequence[DeviceBuffer],
        outputs: Sequence[np.ndarray | None],
    ) -> None:
        """Copy arrays of the host into the buffers before each run, and out of them after it."""
        self._there = list(zip(given, inputs, strict=True))
        self._back = [(b, array) for b, array in zip(made, outputs, strict=True) if array is not None]

    def run(self, session: Any, binding: Any) -> None:
        """Compute once, synchronously."""
        for buffer, array in self._there:
            buffer.write(array)
        session.run_with_iobinding(binding, self._options)
        for buffer, array in self._back:
            buffer.read(array)


def domain_of(specs: Sequence[TensorSpec], domain: str) -> str:
    """The domain, or the host where a value cannot stay in it (its shape or type is not plain)."""
    plain = all(s.is_static and 0 not in s.static_shape and _is_plain(s.dtype) for s in specs)
    return domain if plain else HOST


def bind(
    session: Any,
    inputs: Sequence[tuple[str, DeviceBuffer]],
    outputs: Sequence[tuple[str, DeviceBuffer]],
) -> Any:
    """A binding of a session's values, by name, to buffers of one CUDA device, whoever made them."""
    binding = session.io_binding()
    for bound, values in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
        for name, buffer in values:
            assert isinstance(buffer, CudaBuffer)
            spec = buffer.spec
            bound(
                *(name, "cuda", number_of(buffer.domain)),
                *(np.dtype(spec.dtype), list(spec.static_shape), buffer.address),
            )
    return binding


def number_of(domain: str) -> int:
    """The device's number in a domain's name: 1 in `cuda:1`."""
    return int(domain.partition(":")[2])


def _is_plain(dtype: str) -> bool:
    return dtype == "bool" or (dtype.startswith(("float", "int", "uint")) and dtype[-1].isdigit())

"""ONNX Runtime on a CUDA device: values that stay in the device's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collage.backends.contract import SubModel
from collage.backends.device_memory import CudaBuffer, DeviceBuffer
from collage.partitioner.target import HOST_MEMORY
from collage.partitioner.tensor import TensorSpec

_KIND = "cuda"  # ONNX Runtime's name of the kind of device


class OrtCudaBuffer(CudaBuffer):
    """An `OrtValue` on a CUDA device."""

    def __init__(self, spec: TensorSpec, domain: str) -> None:
        import onnxruntime

        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            list(spec.static_shape), np.dtype(spec.dtype), _KIND, number_of(domain)
        )
        super().__init__(spec, domain, value.data_ptr())
        self._value: Any = value

    def write(self, values: np.ndarray) -> None:
        self._value.update_inplace(np.ascontiguousarray(values))

    def read(self, values: np.ndarray) -> None:
        np.copyto(values, self._value.numpy())


class OnDevice:
    """A session's values in the memory of a CUDA device.

    Arrays on the host are copied there before each run and back after it: a session's binding to arrays
    copies inputs only once, when they are bound.

    Args:
        model: what it runs; its inputs and outputs have static shapes.
        graphs: kernels are recorded at the first run after a binding, and launched as one CUDA graph at
            the others.
    """

    def __init__(self, session: Any, model: SubModel, domain: str, graphs: bool) -> None:
        self._session, self._model, self._domain = session, model, domain
        self._graphs, self._bindings = graphs, 0
        self._binding: Any = None
        self._options: Any = None
        self._kept: list[DeviceBuffer] = []
        self._there: list[tuple[DeviceBuffer, np.ndarray]] = []
        self._back: list[tuple[DeviceBuffer, np.ndarray | None]] = []

    def bind(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray | None]) -> None:
        """Use these arrays on the host; an output given as None is a new array after each run."""
        given = [OrtCudaBuffer(spec, self._domain) for spec in self._model.inputs]
        made = [OrtCudaBuffer(spec, self._domain) for spec in self._model.outputs]
        self.bind_device(given, made)
        self._there = list(zip(given, inputs, strict=True))
        self._back = list(zip(made, outputs, strict=True))

    def bind_device(self, inputs: Sequence[DeviceBuffer], outputs: Sequence[DeviceBuffer]) -> None:
        """Use these buffers of the domain."""
        import onnxruntime

        self._kept, self._there, self._back = [*inputs, *outputs], [], []
        self._binding = self._session.io_binding()
        bound = (self._binding.bind_input, self._model.inputs, inputs)
        made = (self._binding.bind_output, self._model.outputs, outputs)
        for bind, specs, buffers in (bound, made):
            for spec, buffer in zip(specs, buffers, strict=True):
                assert isinstance(buffer, CudaBuffer)
                shape, dtype = list(buffer.spec.static_shape), np.dtype(buffer.spec.dtype)
                bind(spec.name, _KIND, number_of(buffer.domain), dtype, shape, buffer.address)
        if self._graphs:  # other buffers need another graph
            self._bindings += 1
            self._options = onnxruntime.RunOptions()
            self._options.add_run_config_entry("gpu_graph_id", str(self._bindings))

    def run(self) -> tuple[np.ndarray, ...]:
        """Compute once, synchronously; the outputs that are on the host."""
        for buffer, array in self._there:
            buffer.write(array)
        self._session.run_with_iobinding(self._binding, self._options)
        results = []
        for buffer, bound in self._back:
            array = np.empty(buffer.spec.static_shape, buffer.spec.dtype) if bound is None else bound
            buffer.read(array)
            results.append(array)
        return tuple(results)


def domain_of(specs: Sequence[TensorSpec], domain: str) -> str:
    """The domain, or the host where a value cannot stay in it (its shape or type is not plain)."""
    plain = all(s.is_static and 0 not in s.static_shape and _is_plain(s.dtype) for s in specs)
    return domain if plain else HOST_MEMORY


def number_of(domain: str) -> int:
    """The device's number in a domain's name: 1 in `cuda:1`."""
    return int(domain.partition(":")[2])


def _is_plain(dtype: str) -> bool:
    return dtype == "bool" or (dtype.startswith(("float", "int", "uint")) and dtype[-1].isdigit())

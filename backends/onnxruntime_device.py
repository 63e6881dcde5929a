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

"""Values that stay in a device's memory between partitions.

Terms: a memory *domain* is `host`, or a device's like `cuda:0`. An executable of a device's domain can
be bound to arrays (`bind`), and then copies from and to the host within each call; or to buffers of its
domain (`bind_device`), and then copies nothing. The executor does the latter, and copies what crosses
domains once for each value and domain, as `collage.partitioner.search.transition` reckons.

Invariants: an executable takes buffers that any other one of its domain made, whatever its runtime; a
buffer's content is valid when `run` or `write` has returned.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any

import numpy as np

from collage.partitioner.tensor import TensorSpec


class DeviceBuffer(ABC):
    """Memory for one value in a domain other than the host's.

    Args:
        domain: as `Backend.memory_domain` names it.
    """

    def __init__(self, spec: TensorSpec, domain: str) -> None:
        self.spec, self.domain = spec, domain

    @abstractmethod
    def write(self, values: np.ndarray) -> None:
        """Copy from the host, synchronously."""

    @abstractmethod
    def read(self, values: np.ndarray) -> None:
        """Copy into an array on the host, synchronously."""


class CudaBuffer(DeviceBuffer):
    """Memory of a CUDA device by its address, which ONNX Runtime and PyTorch both take."""

    def __init__(self, spec: TensorSpec, domain: str, address: int) -> None:
        super().__init__(spec, domain)
        self.address = address

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        # https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
        return {
            "shape": self.spec.static_shape,
            "typestr": np.dtype(self.spec.dtype).str,
            "data": (self.address, False),
            "version": 3,
        }


@lru_cache(maxsize=1)
def cuda_devices() -> int:
    """How many CUDA devices the driver gives to this process; 0 where there is no driver.

    Children that are forked after this call cannot use CUDA, so the fork server never calls it.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if found else 0

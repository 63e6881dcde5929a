"""PyTorch through torch.compile: inductor's fused loops around oneDNN's convolutions and products.

onnx2fx makes the ONNX file an FX graph; inductor compiles it for its shapes with frozen weights; it
runs under `no_grad`. Compiling takes long, so small regions are refused.

Traps, each with a test:

* Inductor calls a C++ compiler: without one only `-compiler=eager` can be used.
* Inductor starts a pool of compiling processes that outlives a compilation: it is told to use none.
* The number of threads belongs to the process, so it is set before each call where it differs.
* cuDNN computes float32 convolutions in TF32 by default, which is a setting of the process too.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from collage.backends.contract import (
    Arithmetic,
    Array,
    Available,
    Backend,
    CompileContext,
    Executable,
    SubModel,
    Unavailable,
    threads_of,
)
from collage.backends.device_memory import CudaBuffer, DeviceBuffer
from collage.backends.machine import process_policy
from collage.backends.options import THREADS, Option
from collage.backends.sandbox.native_output import quiet
from collage.backends.support import cuda_options, predicates
from collage.backends.support import patterns as p
from collage.backends.support.cuda_options import GRAPHS, TF32, is_on
from collage.backends.torch.operators import ONNX_OPERATORS
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.rules.pattern import Pattern
from collage.partitioner.target import HOST_MEMORY, Target
from collage.partitioner.tensor import TensorSpec

_REFUSED_DTYPES = (
    *("object", "bfloat16", "float16", "uint16", "uint32", "uint64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int4", "uint4"),
)
_LEAST_SHARE = 4
_INSTALL = "pip install 'collage-tuner[torch]'"


class TorchBackend(Backend):
    """torch.compile on an FX graph."""

    name = "torch"
    style = "graph"
    summary = "PyTorch through torch.compile: compiles large regions, in seconds to minutes each."
    options = (
        THREADS,
        Option(
            "compiler",
            "inductor",
            "inductor compiles whole regions; eager calls operator by operator and compiles nothing.",
            choices=("inductor", "eager"),
        ),
        Option("device", "cpu", "Where it computes.", pattern="cpu|cuda(:[0-9]{1,2})?"),
        TF32,
        GRAPHS,
    )

    def probe(self) -> Available | Unavailable:
        # Importing torch takes seconds, so its installed version is looked up instead.
        try:
            found = f"{version('torch')} onnx2fx {version('onnx2fx')}"
        except PackageNotFoundError as error:
            return Unavailable(f"{error.name} is not installed", _INSTALL)
        if importlib.util.find_spec("torch") is None:
            return Unavailable("torch is damaged", _INSTALL)
        return Available(found)

    def check_target(self, target: Target) -> str | None:
        device, compiler = target.option("device", "cpu"), target.option("compiler", "inductor")
        if compiler == "inductor" and _compiler() is None:
            return "inductor needs a C++ compiler; install g++ or clang++, or use -compiler=eager"
        if device == "cpu":
            asked = is_on(target, TF32) or is_on(target, GRAPHS)
            return "-tf32 and -graphs are for -device=cuda" if asked else None
        if compiler == "eager" and is_on(target, GRAPHS):
            return "-graphs is for -compiler=inductor"
        count = _torch().cuda.device_count()
        number = int(_cuda_number(device))
        if number < count:
            return None
        return f"this PyTorch ({version('torch')}) sees {count} CUDA devices, so there is no {device}"

    def memory_domain(self, target: Target) -> str:
        device = target.option("device", "cpu")
        return HOST_MEMORY if device == "cpu" else f"cuda:{_cuda_number(device)}"

    def supports(self, index: GraphIndex, node: int, target: Target) -> str | None:
        return predicates.first_refusal(
            index,
            index.nodes[node],
            predicates.refuse_other_ops(ONNX_OPERATORS),
            predicates.refuse_bodies,
            predicates.refuse_dtypes(_REFUSED_DTYPES),
            predicates.refuse_unknown_shapes,
        )

    def refuse_region(self, index: GraphIndex, nodes: int, target: Target) -> str | None:
        if nodes.bit_count() * _LEAST_SHARE >= len(index.nodes):
            return None
        return f"torch compiles for seconds, so it is offered 1/{_LEAST_SHARE} of a model at the least"

    def arithmetic(self, target: Target) -> Arithmetic:
        return cuda_options.arithmetic(target)

    def patterns(self, target: Target) -> tuple[Pattern, ...]:
        return (
            # oneDNN post-operations, which inductor asks for once weights are frozen.
            *(p.CONV_RELU, p.CONV_CLIP, p.CONV_NORM, p.CONV_NORM_RELU, p.CONV_ADD_RELU),
            *(p.MATMUL_BIAS, p.MATMUL_BIAS_GELU, p.GEMM_RELU),
            # One generated loop over a row.
            *(p.LAYER_NORM, p.LAYER_NORM_OLD),
        )

    def compile(self, model: SubModel, target: Target, context: CompileContext) -> Executable:
        for spec in (*model.inputs, *model.outputs):
            if not spec.is_static or 0 in spec.static_shape:
                raise CollageError(f"torch is given static shapes only; {spec.name!r} has {spec.shape}")
        return TorchExecutable(model, target, context, self.memory_domain(target))


class TorchCudaBuffer(CudaBuffer):
    """A contiguous tensor on a CUDA device."""

    def __init__(self, spec: TensorSpec, domain: str) -> None:
        torch = _torch()
        dtype = getattr(torch, spec.dtype)
        self._tensor: Any = torch.empty(spec.static_shape, dtype=dtype, device=domain)
        self._synchronize = torch.cuda.synchronize
        super().__init__(spec, domain, self._tensor.data_ptr())

    def write(self, values: Array) -> None:
        self._tensor.copy_(_torch().from_numpy(values))
        self._synchronize(self._tensor.device)

    def read(self, values: Array) -> None:
        np.copyto(values, self._tensor.cpu().numpy())


class TorchExecutable(Executable):
    """A compiled module on tensors that stand on the caller's arrays, or on memory of a device."""

    def __init__(
        self, model: SubModel, target: Target, context: CompileContext, domain: str = HOST_MEMORY
    ) -> None:
        self._torch = torch = _torch()
        self._model, self._domain = model, domain
        self._threads = threads_of(target, context)
        self._device = torch.device(target.option("device", "cpu"))
        self._tf32 = is_on(target, TF32)
        inductor = target.option("compiler", "inductor") == "inductor"
        with quiet():
            self._module: Any = _converted(model, self._device)
            self._code = type(self._module).forward.__code__
            self._sharing = [self._code]  # an entry for each executable on this code
            if inductor:
                self._module = _compiled(self._module, context, is_on(target, GRAPHS))
        self._inputs: list[Any] = []
        self._outputs: tuple[Array | None, ...] = ()
        self._on_device: list[Any] = []
        self._results: tuple[Array, ...] = ()
        if inductor:  # it compiles at the first call
            zeros = [np.zeros(s.static_shape, np.dtype(s.dtype)) for s in model.inputs]
            self.bind(zeros, [None] * len(model.outputs))
            with quiet():
                self.run()

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        self._inputs = [self._torch.from_numpy(array) for array in inputs]
        self._outputs, self._on_device = tuple(outputs), []

    def another(self) -> Executable | None:
        if self._domain != HOST_MEMORY:
            return None
        self._sharing.append(self._code)
        return copy.copy(self)

    @property
    def domain(self) -> str:
        return self._domain

    def buffer(self, spec: TensorSpec) -> DeviceBuffer:
        return TorchCudaBuffer(spec, self._domain)

    def bind_device(self, inputs: Sequence[DeviceBuffer], outputs: Sequence[DeviceBuffer]) -> None:
        self._inputs = [self._torch.as_tensor(b, device=self._device) for b in inputs]
        self._on_device = [self._torch.as_tensor(b, device=self._device) for b in outputs]

    def run(self) -> None:
        torch = self._torch
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        for kind in (torch.backends.cudnn, torch.backends.cuda.matmul):  # their defaults differ
            if kind.allow_tf32 != self._tf32:
                kind.allow_tf32 = self._tf32
        with torch.no_grad():
            made = self._module(*(tensor.to(self._device) for tensor in self._inputs))
        if not isinstance(made, (tuple, list)):
            made = (made,)
        if self._on_device:
            for tensor, bound in zip(made, self._on_device, strict=True):
                bound.copy_(tensor.reshape(bound.shape))
            self._torch.cuda.synchronize(self._device)  # the next runtime has a stream of its own
            return
        self._results = tuple(
            _fetched(tensor, bound) for tensor, bound in zip(made, self._outputs, strict=True)
        )

    @property
    def results(self) -> tuple[Array, ...]:
        return self._results

    def close(self) -> None:
        if self._module is not None:
            self._sharing.pop()
            if not self._sharing:
                # Compiled code is kept per function until it is forgotten.
                self._torch._dynamo.reset_code(self._code)
        self._module = None
        self._inputs, self._outputs, self._on_device, self._results = [], (), [], ()


def _fetched(tensor: Any, bound: Array | None) -> Array:
    made: Array = tensor.cpu().numpy()
    if bound is None:
        return np.array(made)
    np.copyto(bound, made.reshape(bound.shape))
    return bound


def _converted(model: SubModel, device: Any) -> Any:
    import onnx2fx

    module = onnx2fx.convert(str(model.path)).eval().to(device)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module


def _compiled(module: Any, context: CompileContext, graphs: bool) -> Any:
    folder = (context.cache_dir or context.work_dir) / "inductor"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    os.environ.setdefault("PATH", os.defpath)  # a sandboxed child has none, and compilers call linkers
    options = {"freezing": True, "compile_threads": 1, "triton.cudagraphs": graphs}
    return _torch().compile(module, fullgraph=True, dynamic=False, options=options)


def _compiler() -> str | None:
    """The C++ compiler that inductor would call."""
    names = (os.environ.get("CXX"), "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _cuda_number(device: str) -> str:
    return device.partition(":")[2] or "0"


def _torch() -> Any:
    process_policy.apply_environment()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch

    return torch

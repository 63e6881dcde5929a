"""ONNX Runtime: the widest operator coverage, on the CPU or another of its execution providers.

`kernels` asks the installed build which operators it takes. Settings of every session:

* `session.force_spinning_stop=1`: workers spin within a run and stop at its end, for the next runtime
  (`-spinning=run`).
* `session.disable_cpu_ep_fallback=1` with every provider but the CPU's: a node that the provider does
  not take is a refusal.
* Inputs and outputs are bound once, zero-copy on the host.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from collage.backends.contract import (
    Arithmetic,
    Array,
    Available,
    CompileContext,
    Executable,
    OpTime,
    SubModel,
    Unavailable,
)
from collage.backends.device_memory import DeviceBuffer, cuda_devices
from collage.backends.numerics.reference import ort_value
from collage.backends.onnxruntime import device, kernels, profile, saturation, script
from collage.backends.options import THREADS, Option
from collage.backends.quantization import quantize as quantization
from collage.backends.quantization.backend import QuantizingBackend
from collage.backends.rewriting.backend import RewritingBackend
from collage.backends.rewriting.rewrite import rewritten
from collage.backends.rewriting.table import REWRITE_OR_WINOGRAD, ROUNDS_TOO_MUCH, WINOGRAD, rewriting
from collage.backends.standalone import Standalone
from collage.backends.support import cuda_options, predicates
from collage.backends.support import patterns as p
from collage.backends.support.cuda_options import GRAPHS, TF32, is_on
from collage.backends.support.ort_session import (
    ON_CUDA,
    PROVIDERS,
    open_model,
    open_session,
    options_of,
    ort,
    preload_cuda,
    session_settings,
)
from collage.backends.support.profile_mapping import op_times
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.lazy import ir
from collage.partitioner.rules.pattern import Pattern
from collage.partitioner.target import HOST_MEMORY, Target
from collage.partitioner.tensor import TensorSpec

_WHEEL: Mapping[str, str] = {
    "cuda": "pip install onnxruntime-gpu",
    "tensorrt": "pip install onnxruntime-gpu tensorrt",
    "coreml": "pip install onnxruntime (on macOS)",
    "qnn": "pip install onnxruntime-qnn",
    "dml": "pip install onnxruntime-directml (on Windows)",
}

_MOST_COPIED_BYTES = 1 << 16


class OnnxRuntimeBackend(QuantizingBackend, RewritingBackend):
    """ONNX Runtime through IOBinding."""

    name = "onnxruntime"
    style = "graph"
    summary = "ONNX Runtime: takes nearly every operator; CPU by default, other providers by -ep."
    options = (
        THREADS,
        Option(
            "opt",
            "all",
            "Graph optimization level of the session.",
            choices=("none", "basic", "extended", "all"),
            tunable=(
                "extended",
            ),  # without the blocked layout, whose borders may cost more than it gains
        ),
        Option(
            "spinning",
            "run",
            "Idle workers spin: within a run only, always (slows the next runtime), or never.",
            choices=("run", "always", "off"),
        ),
        Option("ep", "cpu", "Execution provider.", choices=tuple(PROVIDERS)),
        Option("device", "0", "Device number for providers that have several.", pattern="[0-9]{1,2}"),
        TF32,
        GRAPHS,
        REWRITE_OR_WINOGRAD,
        saturation.U8S8,
        *quantization.options(quantization.DYNAMIC, quantization.STATIC),
    )

    def probe(self) -> Available | Unavailable:
        try:
            return Available(ort().__version__)
        except Exception as error:  # a damaged installation may raise anything
            return Unavailable(f"onnxruntime cannot be imported ({error})", "pip install onnxruntime")

    def check_target(self, target: Target) -> str | None:
        ep = target.option("ep", "cpu")
        if ep != "cpu" and quantization.kind_of(target) is not None:
            return "-quant was made for the CPU's integer kernels; use it without -ep"
        if rewriting(target) == WINOGRAD and quantization.kind_of(target):
            return ROUNDS_TOO_MUCH
        if ep != "cuda" and (is_on(target, TF32) or is_on(target, GRAPHS)):
            return "-tf32 and -graphs are for -ep=cuda"
        if ep != "cpu" and saturation.is_exact(target):
            return "-u8s8 is for the CPU's integer kernels; use it without -ep"
        present = ort().get_available_providers()
        if PROVIDERS[ep] in present:
            return _refuse_device(target) if ep in ON_CUDA else quantization.refuse_float(target)
        wheel = _WHEEL.get(ep, "a build of ONNX Runtime with that provider")
        return (
            f"this ONNX Runtime has no {PROVIDERS[ep]} (it has {', '.join(present)}); needed: {wheel}"
        )

    def memory_domain(self, target: Target) -> str:
        on_cuda = target.option("ep", "cpu") in ON_CUDA
        return f"cuda:{int(target.option('device', '0'))}" if on_cuda else HOST_MEMORY

    def supports(self, index: GraphIndex, node: int, target: Target) -> str | None:
        return kernels.refusal(index, index.nodes[node], target.option("ep", "cpu"))

    def patterns(self, target: Target) -> tuple[Pattern, ...]:
        return (
            # The blocked (NCHWc) convolution kernel applies these in registers, before it stores.
            *(p.CONV_RELU, p.CONV_CLIP, p.CONV_LEAKY, p.CONV_SIGMOID),
            # Batch normalization is folded into the convolution's weights when a session opens.
            *(p.CONV_NORM, p.CONV_NORM_RELU),
            # The residual is added to the accumulator instead of starting it at zero.
            *(p.CONV_ADD_RELU, p.ADD_CONV_RELU, p.CONV_NORM_ADD_RELU),
            # One SGEMM call with packed weights; the bias is its initial value of C.
            *(p.MATMUL_BIAS, p.BIAS_MATMUL, p.GEMM_RELU),
            # One pass over a row that stays in the first cache, instead of five to nine.
            *(p.LAYER_NORM, p.LAYER_NORM_OLD, p.MATMUL_BIAS_GELU),
        )

    def arithmetic(self, target: Target) -> Arithmetic:
        kind = quantization.kind_of(target)
        if kind is None:
            return cuda_options.arithmetic(target)
        return Arithmetic(quantization.numbers(target), True, quantization.sense(kind))

    def exact_forms(
        self, target: Target, index: GraphIndex, features: Collection[str]
    ) -> tuple[Target, ...]:
        if target.option("ep", "cpu") != "cpu":
            return ()
        found = saturation.exact_form(target, index, features)
        return (found,) if found is not None else ()

    def opening_lines(self, target: Target, threads: int) -> str | None:
        return script.opening_lines(target, threads)

    def compile(self, model: SubModel, target: Target, context: CompileContext) -> Executable:
        dtypes = [predicates.numpy_dtype(spec) for spec in (*model.inputs, *model.outputs)]
        if any(dtype.hasobject for dtype in dtypes):
            return TextExecutable(model, target, context)
        return OnnxRuntimeExecutable(model, target, context, self.memory_domain(target))


class OnnxRuntimeExecutable(Executable):
    """A session with its inputs and outputs bound."""

    def __init__(
        self, model: SubModel, target: Target, context: CompileContext, domain: str = HOST_MEMORY
    ) -> None:
        self._model, self._target, self._context = model, target, context
        self._domain = device.domain_of((*model.inputs, *model.outputs), domain)
        graphs = is_on(target, GRAPHS)
        if graphs and self._domain == HOST_MEMORY:
            raise CollageError(
                "a CUDA graph needs plain dtypes and shapes that are known before the run"
            )
        if graphs and not model.inputs:
            raise CollageError("without inputs all is folded, and a CUDA graph would be empty")
        self._path = rewritten(model, target, context).path
        self._session: Any = open_session(self._path, target, context)
        self._on_device: device.OnDevice | None = None
        if self._domain != HOST_MEMORY:
            self._on_device = device.OnDevice(self._session, model, self._domain, graphs)
        # A binding copies inputs to a device once, when they are bound.
        self._rebinds = self._on_device is None and domain != HOST_MEMORY
        self._binding: Any = None
        # A plain call costs less than a binding whose outputs are bound anew at each run.
        self._is_called = domain == HOST_MEMORY and _is_called(model)
        self._names = [spec.name for spec in model.outputs]
        self._feed: dict[str, Array] = {}
        self._inputs: tuple[Array, ...] = ()
        self._bound: tuple[Array | None, ...] = ()
        self._own: list[int] = []
        self._results: tuple[Array, ...] = ()
        # OrtValues do not own their arrays: both are kept until the next bind.
        self._kept: list[object] = []

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        self._kept = []
        self._inputs, self._bound = tuple(inputs), tuple(outputs)
        self._own = [i for i, output in enumerate(outputs) if output is None]
        self._results = tuple(outputs) if not self._own else ()  # type: ignore[arg-type]
        if self._is_called:
            self._feed = dict(zip((spec.name for spec in self._model.inputs), inputs, strict=True))
        elif self._on_device is None:
            self._binding = self._bound_to(self._session)
        else:
            self._on_device.bind(inputs, outputs)

    @property
    def domain(self) -> str:
        return self._domain

    def buffer(self, spec: TensorSpec) -> DeviceBuffer:
        return device.OrtCudaBuffer(spec, self._domain)

    def bind_device(self, inputs: Sequence[DeviceBuffer], outputs: Sequence[DeviceBuffer]) -> None:
        assert self._on_device is not None
        self._on_device.bind_device(inputs, outputs)

    def run(self) -> None:
        if self._is_called:
            self._results = _received(self._session.run(self._names, self._feed), self._bound)
            return
        if self._on_device is not None:
            self._results = self._on_device.run()
            return
        if self._rebinds:
            self._kept = []
            self._binding = self._bound_to(self._session)
        self._run(self._session, self._binding)
        if self._own:
            self._collect()

    @property
    def results(self) -> tuple[Array, ...]:
        return self._results

    def standalone(self) -> Standalone | None:
        if self._target.option("ep", "cpu") != "cpu":
            return None
        return Standalone(
            "onnxruntime",
            "onnxruntime",
            {"model": self._path},
            session_settings(self._target, self._context),
        )

    def another(self) -> Executable | None:
        if self._on_device is not None or self._rebinds:
            return None
        return copy.copy(self)  # a session may be called by several threads; the rest is made by `bind`

    def profile(self, runs: int) -> list[OpTime]:
        if is_on(self._target, GRAPHS):  # it sees one launch of a graph
            return []
        options = options_of(self._target, self._context)
        # The rewritten model, which has the optimized graph's name, is in the work folder itself.
        folder = self._context.work_dir / "profile"
        folder.mkdir(exist_ok=True)
        profile.prepare(options, folder)
        session = open_model(self._path, self._target, options)
        binding = self._bound_to(session)
        for _ in range(runs + 1):
            self._run(session, binding)
        steps = profile.collect(session, folder)
        return op_times(GraphIndex.from_ir(ir.load(self._model.path)), steps)

    def close(self) -> None:
        self._session = self._binding = self._on_device = None
        self._kept, self._feed, self._inputs, self._bound, self._results = [], {}, (), (), ()

    def _bound_to(self, session: Any) -> Any:
        binding = session.io_binding()
        for spec, array in zip(self._model.inputs, self._inputs, strict=True):
            binding.bind_ortvalue_input(spec.name, self._value(array))
        for spec, output in zip(self._model.outputs, self._bound, strict=True):
            if output is not None:
                binding.bind_ortvalue_output(spec.name, self._value(output))
        return binding

    def _run(self, session: Any, binding: Any) -> None:
        for i in self._own:  # else the last run's buffer is used, whose shape may differ
            binding.bind_output(self._model.outputs[i].name, "cpu")
        session.run_with_iobinding(binding)

    def _value(self, array: Array) -> Any:
        value = ort_value(array)
        self._kept.append(value)
        return value

    def _collect(self) -> None:
        """Fetch the outputs that the runtime allocated in this run."""
        # A binding lists outputs in the order in which they were bound: those with a buffer first.
        values = self._binding.get_outputs()[-len(self._own) :]
        results = list(self._bound)
        for i, value in zip(self._own, values, strict=True):
            results[i] = np.array(value.numpy())  # the runtime may use its memory again
        self._results = tuple(results)  # type: ignore[arg-type]


class TextExecutable(Executable):
    """A session with text among its inputs or outputs, which cannot be bound."""

    def __init__(self, model: SubModel, target: Target, context: CompileContext) -> None:
        self._session: Any = open_session(rewritten(model, target, context).path, target, context)
        self._model = model
        self._inputs: tuple[Array, ...] = ()
        self._outputs: tuple[Array | None, ...] = ()
        self._results: tuple[Array, ...] = ()

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)

    def run(self) -> None:
        specs = self._model.inputs
        given = {spec.name: array for spec, array in zip(specs, self._inputs, strict=True)}
        made = self._session.run([spec.name for spec in self._model.outputs], given)
        self._results = _received(made, self._outputs)

    @property
    def results(self) -> tuple[Array, ...]:
        return self._results

    def another(self) -> Executable:
        return copy.copy(self)

    def close(self) -> None:
        self._session = None
        self._inputs, self._outputs, self._results = (), (), ()


def _is_called(model: SubModel) -> bool:
    """Whether a model has an output that cannot be bound, and little else that would have to be copied."""
    static = sum(spec.size_bytes for spec in model.outputs)
    plain = all(
        np.dtype(spec.dtype).kind in "biufc"
        for spec in (*model.inputs, *model.outputs)
        if spec.dtype != "unknown"
    )
    return plain and static <= _MOST_COPIED_BYTES and any(not s.is_static for s in model.outputs)


def _received(made: Sequence[Array], bound: Sequence[Array | None]) -> tuple[Array, ...]:
    """Results of a call; those with a place are copied to it."""
    results = []
    for value, place in zip(made, bound, strict=True):
        if place is not None:
            np.copyto(place, value)
        results.append(value if place is None else place)
    return tuple(results)


def _refuse_device(target: Target) -> str | None:
    number, count = int(target.option("device", "0")), cuda_devices()
    if number >= count:
        return f"the driver of this machine has {count} CUDA devices, so there is no device {number}"
    return preload_cuda() or None

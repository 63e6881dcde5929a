"""OpenVINO on the CPU: a graph compiler with blocked layouts and bf16.

Settings of every compiled model:

* `INFERENCE_PRECISION_HINT` is always given: by default a CPU with bf16 computes in bf16, and the
  precision belongs in the cost key.
* The LATENCY hint and one stream: the THROUGHPUT hint halves the speed of single requests.
* `DYNAMIC_QUANTIZATION_GROUP_SIZE` is 0 unless asked for: by default inputs of products with int8
  weights are rounded.
* `ENABLE_CPU_PINNING` is off unless asked for: pinned workers slow the next runtime down.

Inputs and outputs share the caller's arrays. `operators` lists what it takes: its ONNX reader cannot be
asked in this process, since an unknown or damaged node may crash it.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Mapping, Sequence
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
    threads_of,
)
from collage.backends.openvino import script
from collage.backends.openvino.attention_masks import shield_masks
from collage.backends.openvino.operators import OPERATORS
from collage.backends.options import THREADS, Option
from collage.backends.quantization import quantize as quantization
from collage.backends.quantization.backend import QuantizingBackend
from collage.backends.rewriting.backend import RewritingBackend
from collage.backends.rewriting.rewrite import rewritten
from collage.backends.rewriting.table import REWRITE_OR_WINOGRAD, ROUNDS_TOO_MUCH, WINOGRAD, rewriting
from collage.backends.standalone import Standalone
from collage.backends.support import patterns as p
from collage.backends.support import predicates
from collage.backends.support.profile_mapping import ProfileStep, op_times
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.lazy import ir
from collage.partitioner.rules.pattern import Pattern
from collage.partitioner.target import Target

_PRECISION = {"f32": "f32", "bf16": "bf16", "f16": "f16"}
_CAPABILITY = {"bf16": "BF16", "f16": "FP16"}
_SENSE = "pays for convolutions and products, on CPUs with AVX-512 BF16 or AMX; refused on others"
# Numbers that share a scale where a product with int8 weights rounds its input (docs/results/int8.md).
_GROUP = 64
# OpenVINO names a Reorder by the maker of its value, two layouts or types (empty for one without a
# name), and the reader.
_FORMAT = r"(?:[A-Ga-g]+(?:\d+[a-g])*|[fuis]\d+|bf16|)"
_REORDER = re.compile(f"(.+)_{_FORMAT}_{_FORMAT}_(.+)")
_AXES_MISREAD = ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp")
_REFUSED_DTYPES = ("object", "bfloat16", "complex64", "complex128")


class OpenVinoBackend(QuantizingBackend, RewritingBackend):
    """OpenVINO's CPU plugin; each executable has an inference request of its own."""

    name = "openvino"
    style = "graph"
    float_results = True
    summary = "OpenVINO on the CPU: compiles whole regions; f32 unless bf16 is asked for."
    options = (
        THREADS,
        Option(
            "precision",
            "f32",
            "What it computes in; bf16 and f16 only where the CPU has them.",
            choices=tuple(_PRECISION),
        ),
        Option(
            "streams",
            "1",
            "Inference streams; one is the fastest for one request.",
            pattern="[1-9][0-9]?",
        ),
        Option(
            "hint",
            "latency",
            "Performance hint; throughput halves the speed of single requests.",
            choices=("latency", "throughput"),
        ),
        Option("pinning", "off", "Pin worker threads to cores.", choices=("on", "off")),
        Option(
            "denormals",
            "keep",
            "Keep denormal numbers or flush them to zero.",
            choices=("keep", "flush"),
        ),
        REWRITE_OR_WINOGRAD,
        *quantization.options(quantization.STATIC, quantization.WEIGHTS),
    )

    def probe(self) -> Available | Unavailable:
        try:
            return Available(_ov().get_version())
        except Exception as error:  # a damaged installation may raise anything
            return Unavailable(f"openvino cannot be imported ({error})", "pip install openvino")

    def check_target(self, target: Target) -> str | None:
        precision = target.option("precision", "f32")
        if rewriting(target) == WINOGRAD and (precision != "f32" or quantization.kind_of(target)):
            return ROUNDS_TOO_MUCH
        if precision == "f32" or quantization.refuse_float(target):
            return quantization.refuse_float(target)
        has = _ov().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if _CAPABILITY[precision] in has:
            return None
        return (
            f"OpenVINO does not compute in {precision} on this CPU (it has {', '.join(has)}); "
            "use -precision=f32"
        )

    def supports(self, index: GraphIndex, node: int, target: Target) -> str | None:
        return predicates.first_refusal(
            index,
            index.nodes[node],
            predicates.refuse_other_ops(OPERATORS),
            predicates.refuse_dtypes(_REFUSED_DTYPES),
            _refuse_open_loops,
            _refuse_empty,
            _refuse_axes_as_attribute,
        )

    def patterns(self, target: Target) -> tuple[Pattern, ...]:
        return (
            # oneDNN post-operations: applied to the accumulators of the convolution's inner loop.
            *(p.CONV_RELU, p.CONV_CLIP, p.CONV_LEAKY, p.CONV_SIGMOID, p.CONV_HARD_SWISH, p.CONV_SWISH),
            # Batch normalization becomes a scale of weights and bias at compile time.
            *(p.CONV_NORM, p.CONV_NORM_RELU),
            # The sum post-operation adds in place into the residual's buffer.
            *(p.CONV_ADD_RELU, p.ADD_CONV_RELU, p.CONV_SUM_RELU),
            *(p.CONV_NORM_ADD_RELU, p.CONV_NORM_SUM_RELU),
            # Inner product with blocked weights; bias and GELU are post-operations.
            *(p.MATMUL_BIAS, p.BIAS_MATMUL, p.MATMUL_BIAS_GELU, p.GEMM_RELU),
            # One MVN kernel, and scaled dot-product attention without storing the scores.
            *(p.LAYER_NORM, p.LAYER_NORM_OLD),
            *(p.ATTENTION, p.SCALED_ATTENTION, p.MASKED_ATTENTION),
            # Local response normalization vectorized over channels.
            p.NORM_POOL,
        )

    def arithmetic(self, target: Target) -> Arithmetic:
        kind = quantization.kind_of(target)
        precision = target.option("precision", "f32")
        if kind is not None:
            rest = "" if precision == "f32" else f"; what stays float is {precision} inside"
            in_file = not rest and not quantization.rounds_inside(target)
            return Arithmetic(quantization.numbers(target), in_file, quantization.sense(kind) + rest)
        return Arithmetic() if precision == "f32" else Arithmetic(precision, False, _SENSE)

    def at_once(self, target: Target) -> tuple[Target, ...]:
        # Alone in a process, workers that are pinned disturb no other runtime.
        given = dict(target.options)
        wanted = {"hint": "throughput", "pinning": "on"}
        return () if given.keys() & wanted else (target.with_options(**wanted),)

    def opening_lines(self, target: Target, threads: int) -> str | None:
        return script.opening_lines(target, threads)

    def compile(self, model: SubModel, target: Target, context: CompileContext) -> Executable:
        for spec in (*model.inputs, *model.outputs):
            predicates.numpy_dtype(spec)
        return OpenVinoExecutable(model, target, context)


def _refuse_open_loops(index: GraphIndex, node: NodeInfo) -> str | None:
    """Refuse loops that may make no trip: OpenVINO then returns what the latest run with trips collected, or crashes."""
    if "Loop" in node.body_ops:
        return (
            "Loop in a body may make no trip, for which OpenVINO returns the results of the run before"
        )
    if node.op != "Loop":
        return None
    given = [index.constant_values.get(name) for name in node.inputs[:2] if name]
    if given and all(value is not None and value.reshape(-1)[:1].all() for value in given):
        return None
    return "Loop may make no trip, for which OpenVINO returns the results of the run before"


def _refuse_empty(index: GraphIndex, node: NodeInfo) -> str | None:
    """Refuse empty tensors where OpenVINO divides by zero, or reads an empty constant as a scalar."""
    if node.op not in ("Expand", "Gather", "Identity"):
        return None
    for spec in predicates.input_specs(index, node):
        if spec.shape and 0 in spec.shape and (node.op != "Identity" or spec.name in index.constants):
            return (
                f"{node.op} has the empty tensor {spec.name!r}, for which OpenVINO crashes or is wrong"
            )
    return None


def _refuse_axes_as_attribute(index: GraphIndex, node: NodeInfo) -> str | None:
    """Refuse reductions of which OpenVINO reads the axes only where opset 18 has them, as an input."""
    if node.op not in _AXES_MISREAD or not 13 <= node.opset < 18 or "axes" not in node.attributes:
        return None
    return f"{node.op} of opset {node.opset} reduces all axes in OpenVINO, whatever its attribute says"


class OpenVinoExecutable(Executable):
    """A compiled model with one inference request."""

    def __init__(self, model: SubModel, target: Target, context: CompileContext) -> None:
        self._model, self._target, self._context = model, target, context
        self._read = rewritten(model, target, context)
        self._compiled, self._request = _compile(self._read, _properties(target, context), context)
        self._ports = _ports(self._compiled, model)
        self._passed = _passed_through(self._compiled, self._ports)
        self._inputs: tuple[Array, ...] = ()
        self._bound: tuple[Array | None, ...] = ()
        self._own: list[int] = []
        self._copies: list[tuple[Array, Array]] = []
        self._results: tuple[Array, ...] = ()

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        ov = _ov()
        for port, array in zip(self._ports, inputs, strict=True):
            if port is not None:
                self._request.set_input_tensor(port, ov.Tensor(_plain(array), shared_memory=True))
        self._copies = []
        for i, output in enumerate(outputs):
            if output is None:
                continue
            self._request.set_output_tensor(i, ov.Tensor(_plain(output), shared_memory=True))
            if i in self._passed:
                self._copies.append((output, inputs[self._passed[i]]))
        self._inputs, self._bound = tuple(inputs), tuple(outputs)
        self._own = [i for i, output in enumerate(outputs) if output is None]
        self._results = tuple(outputs) if not self._own else ()  # type: ignore[arg-type]

    def run(self) -> None:
        self._request.infer()
        for output, given in self._copies:
            np.copyto(output, given.reshape(output.shape))
        if self._own:
            results = list(self._bound)
            for i in self._own:
                results[i] = np.array(self._request.get_output_tensor(i).data)
            self._results = tuple(results)  # type: ignore[arg-type]

    @property
    def results(self) -> tuple[Array, ...]:
        return self._results

    def standalone(self) -> Standalone | None:
        if self._target.option("precision", "f32") != "f32":
            return None  # the model is changed in memory when it is read
        settings = {
            "properties": _properties(self._target, self._context),
            "ports": list(self._ports),
            "passed": {str(output): given for output, given in self._passed.items()},
        }
        return Standalone("openvino", "openvino", {"model": self._read.path}, settings)

    def another(self) -> Executable:
        other = copy.copy(self)
        other._request = self._compiled.create_infer_request()
        return other

    def profile(self, runs: int) -> list[OpTime]:
        properties = _properties(self._target, self._context) | {"PERF_COUNT": True}
        compiled, request = _compile(self._read, properties, self._context)
        for port, array in zip(self._ports, self._inputs, strict=True):
            if port is not None:
                request.set_input_tensor(port, _ov().Tensor(_plain(array), shared_memory=True))
        request.infer()
        times: dict[str, list[float]] = {}
        kinds: dict[str, str] = {}
        for _ in range(runs):
            request.infer()
            for step in request.get_profiling_info():
                if step.status == step.EXECUTED:
                    times.setdefault(step.node_name, []).append(step.real_time.total_seconds() * 1e6)
                    kinds[step.node_name] = f"{step.node_type} {step.exec_type}"
        fused = _original_names(compiled)
        steps = [
            ProfileStep(
                (*fused.get(name, ()), name),
                kinds[name],
                sum(spent) / len(spent),
                _between(name, fused),
            )
            for name, spent in times.items()
        ]
        return op_times(GraphIndex.from_ir(ir.load(self._model.path)), steps)

    def close(self) -> None:
        self._request = self._compiled = None
        self._inputs, self._bound, self._copies = (), (), []


def _plain(array: Array) -> Array:
    """The same memory under numpy's usual type: OpenVINO knows int64 as long, not as long long."""
    return array.view(np.dtype(array.dtype.name))


def _ports(compiled: Any, model: SubModel) -> tuple[int | None, ...]:
    """The port of each input of the sub-model; None for one that was optimized away, after which the next move up."""
    if len(compiled.inputs) == len(model.inputs):
        return tuple(range(len(model.inputs)))
    found = {name: i for i, port in enumerate(compiled.inputs) for name in port.get_names()}
    ports = tuple(found.get(spec.name) for spec in model.inputs)
    if len(compiled.inputs) != sum(port is not None for port in ports):
        raise CollageError("OpenVINO has dropped some inputs and renamed others")
    return ports


def _passed_through(compiled: Any, ports: Sequence[int | None]) -> dict[int, int]:
    """Outputs that are a bare input: by output, which input of the sub-model.

    OpenVINO 2026.4 never writes such an output's tensor, so it is copied. Names are of no use here:
    such an input has those of the nodes that were optimized away.
    """
    runtime = compiled.get_runtime_model()
    places = {p.get_friendly_name(): ports.index(i) for i, p in enumerate(runtime.get_parameters())}
    sources = [result.input_value(0).get_node() for result in runtime.get_results()]
    return {
        i: places[source.get_friendly_name()]
        for i, source in enumerate(sources)
        if source.get_type_name() == "Parameter"
    }


def _ov() -> Any:
    # Loading OpenVINO sends telemetry from a forked copy of this process, which may hang. None makes
    # that import fail, and OpenVINO uses its own stub.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


def _original_names(compiled: Any) -> dict[str, tuple[str, ...]]:
    """By step the names of the layers that were fused into it, the last one first."""
    found = {}
    for step in compiled.get_runtime_model().get_ordered_ops():
        names = step.get_rt_info()["originalLayersNames"].astype(str)
        found[step.get_friendly_name()] = tuple(reversed([n for n in names.split(",") if n]))
    return found


def _between(name: str, fused: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The steps before and after a Reorder, as its name tells; empty for other steps."""
    found = _REORDER.fullmatch(name)
    steps = () if found is None else found.groups()
    return tuple(called for step in steps for called in (*fused.get(step, ()), step))


def _compile(model: SubModel, properties: dict[str, Any], context: CompileContext) -> tuple[Any, Any]:
    core = _ov().Core()
    core.set_property({"ENABLE_MMAP": True})
    if context.cache_dir is not None:
        core.set_property({"CACHE_DIR": str(context.cache_dir)})
    source: Any = str(model.path)
    if properties["INFERENCE_PRECISION_HINT"] != "f32":
        read = core.read_model(source)
        source = read if shield_masks(read, _ov()) else source
    compiled = core.compile_model(source, "CPU", properties)
    return compiled, compiled.create_infer_request()


def _properties(target: Target, context: CompileContext) -> dict[str, Any]:
    return {
        "INFERENCE_PRECISION_HINT": _PRECISION[target.option("precision", "f32")],
        "PERFORMANCE_HINT": target.option("hint", "latency").upper(),
        # Each request that runs at once has streams and threads of its own.
        "NUM_STREAMS": str(int(target.option("streams", "1")) * context.instances),
        "INFERENCE_NUM_THREADS": threads_of(target, context) * context.instances,
        "ENABLE_CPU_PINNING": target.option("pinning", "off") == "on",
        "CPU_DENORMALS_OPTIMIZATION": target.option("denormals", "keep") == "flush",
        "PERF_COUNT": False,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _GROUP if quantization.rounds_inside(target) else 0,
    }

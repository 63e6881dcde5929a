"""OpenVINO on the CPU: a graph compiler with blocked layouts and bf16.

Settings of every compiled model:

* `INFERENCEPRECISION_HINT` is always given: by default a CPU with bf16 computes in bf16, and the
  precision belongs in the cost key.
* The LATENCY hint and one stream: the THROUGHPUT hint halves the speed of single requests.
* `DYNAMIC_QUANTIZATION_GROUP_SIZE` is 0 unless asked for: by default inputs of products with int8
  weights are rounded.
* `ENABLE_CPU_PINNING` is off unless asked for: pinned workers slow the next runtime down.

Inputs and outputs share the caller's arrays. `operators` lists what it takes: its ONNX reader cannot be
asked in this process, since an unknown or damaged node may crash it.
"""

from __future__ import annotations

from collage.backends.contract import (
    Arithmetic,
    Available,
    CompileContext,
    Executable,
    SubModel,
    Unavailable,
)
from collage.backends.openvino import script
from collage.backends.openvino.executable import PRECISION, OpenVinoExecutable, ov
from collage.backends.openvino.operators import OPERATORS
from collage.backends.options import THREADS, Option, switch
from collage.backends.quantization import kinds
from collage.backends.quantization.backend import QuantizingBackend
from collage.backends.quantization.quantize import Kernels
from collage.backends.rewriting.backend import RewritingBackend
from collage.backends.rewriting.table import REWRITE_OR_WINOGRAD, ROUNDS_TOO_MUCH, WINOGRAD, rewriting
from collage.backends.support import conversion, predicates
from collage.backends.support import patterns as p
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.rules.pattern import Pattern
from collage.partitioner.target import Target

_CAPABILITY = {"bf16": "BF16", "f16": "FP16"}
_SENSE = "pays for convolutions and products, on CPUs with AVX-512 BF16 or AMX; refused on others"
_AXES_MISREAD = ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp")
_MASK_IS_MADE = 12  # the opset since when OpenVINO computes the mask of a Dropout
_PEEPHOLES = 7  # the position of this input of LSTM
_REFUSED_DTYPES = ("object", "bfloat16", "complex64", "complex128")


class OpenVinoBackend(QuantizingBackend, RewritingBackend):
    """OpenVINO's CPU plugin; each executable has an inference request of its own."""

    name = "openvino"
    style = "graph"
    kernels = Kernels(float_results=True, strides=False)
    summary = "OpenVINO on the CPU: compiles whole regions; f32 unless bf16 is asked for."
    options = (
        THREADS,
        Option(
            "precision",
            "f32",
            "What it computes in; bf16 and f16 only where the CPU has them.",
            choices=tuple(PRECISION),
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
        Option(
            "partitioner",
            "own",
            "How oneTBB splits loops among threads: as OpenVINO chooses, into equal shares, or as threads get free.",
            choices=("own", "static", "auto"),
            is_later=True,
            tunable=("static", "auto"),
            whole_first=True,
            on_trial=True,
        ),
        switch("snippets", "Chains of elementwise operators are compiled into one kernel."),
        REWRITE_OR_WINOGRAD,
        *kinds.options(kinds.STATIC, kinds.WEIGHTS, *kinds.BITS),
    )

    def probe(self) -> Available | Unavailable:
        try:
            return Available(ov().get_version())
        except Exception as error:  # a damaged installation may raise anything
            return Unavailable(f"openvino cannot be imported ({error})", "pip install openvino")

    def check_target(self, target: Target) -> str | None:
        precision = target.option("precision", "f32")
        if rewriting(target) == WINOGRAD and (precision != "f32" or kinds.kind_of(target)):
            return ROUNDS_TOO_MUCH
        if precision == "f32" or kinds.refuse_float(target):
            return kinds.refuse_float(target)
        has = ov().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
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
            _refuse_misread,
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
        kind = kinds.kind_of(target)
        precision = target.option("precision", "f32")
        if kind is not None:
            rest = "" if precision == "f32" else f"; what stays float is {precision} inside"
            in_file = not rest and not kinds.rounding_group(target)
            return Arithmetic(kinds.numbers(target), in_file, kinds.sense(kind) + rest)
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


def _refuse_misread(index: GraphIndex, node: NodeInfo) -> str | None:
    """Refuse inputs, outputs and attributes that OpenVINO ignores or misreads."""
    attributes = node.attributes
    if node.op == "LSTM" and len(node.inputs) > _PEEPHOLES and node.inputs[_PEEPHOLES]:
        return "OpenVINO ignores the peepholes of LSTM"
    if node.op == "Dropout" and node.opset < _MASK_IS_MADE and len(node.outputs) > 1:
        return "OpenVINO makes a mask of Dropout without any values"
    if node.op == "Softmax":
        return conversion.refuse_flattening_softmax(index, node)
    if node.op == "ConvTranspose" and "output_shape" in attributes and attributes.get("group", 1) != 1:
        return "OpenVINO misreads the output_shape of ConvTranspose with groups"
    if node.op == "Resize" and attributes.get("exclude_outside"):
        return "OpenVINO ignores exclude_outside of Resize"
    return None

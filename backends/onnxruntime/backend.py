"""ONNX Runtime: the widest operator coverage, on the CPU or another of its execution providers.

`kernels` asks the installed build which operators it takes. Settings of every session:

* `session.force_spinning_stop=1`: workers spin within a run and stop at its end, for the next runtime
  (`-spinning=run`).
* `session.disable_cpu_ep_fallback=1` with every provider but the CPU's: a node that the provider does
  not take is a refusal.
* Inputs and outputs are bound once, zero-copy on the host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from collage.backends.contract import (
    Arithmetic,
    Available,
    CompileContext,
    Executable,
    SubModel,
    Unavailable,
)
from collage.backends.device_memory import cuda_devices
from collage.backends.onnxruntime import kernels, saturation, script
from collage.backends.onnxruntime.executable import OnnxRuntimeExecutable, TextExecutable
from collage.backends.options import THREADS, Option, switch
from collage.backends.quantization import kinds
from collage.backends.quantization.backend import QuantizingBackend
from collage.backends.rewriting.backend import RewritingBackend
from collage.backends.rewriting.table import REWRITE_OR_WINOGRAD, ROUNDS_TOO_MUCH, WINOGRAD, rewriting
from collage.backends.support import cuda_options, predicates
from collage.backends.support import patterns as p
from collage.backends.support.cuda_options import GRAPHS, TF32, is_on
from collage.backends.support.ort_session import (
    ON_CUDA,
    PROVIDERS,
    ort,
    preload_cuda,
)
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.rules.pattern import Pattern
from collage.partitioner.target import HOST_MEMORY, Target

_WHEEL: Mapping[str, str] = {
    "cuda": "pip install onnxruntime-gpu",
    "tensorrt": "pip install onnxruntime-gpu tensorrt",
    "coreml": "pip install onnxruntime (on macOS)",
    "qnn": "pip install onnxruntime-qnn",
    "dml": "pip install onnxruntime-directml (on Windows)",
}


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
            on_trial=True,
        ),
        switch("prepack", "Weights are packed once, when a session opens."),
        switch("pool", "Values come from a memory pool that the session keeps."),
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
        *kinds.options(kinds.DYNAMIC, kinds.STATIC, *kinds.BITS),
    )

    def probe(self) -> Available | Unavailable:
        try:
            return Available(ort().__version__)
        except Exception as error:  # a damaged installation may raise anything
            return Unavailable(f"onnxruntime cannot be imported ({error})", "pip install onnxruntime")

    def check_target(self, target: Target) -> str | None:
        ep = target.option("ep", "cpu")
        if ep != "cpu" and kinds.kind_of(target) is not None:
            return "-quant was made for the CPU's integer kernels; use it without -ep"
        if rewriting(target) == WINOGRAD and kinds.kind_of(target):
            return ROUNDS_TOO_MUCH
        if ep != "cuda" and (is_on(target, TF32) or is_on(target, GRAPHS)):
            return "-tf32 and -graphs are for -ep=cuda"
        if ep != "cpu" and saturation.is_exact(target):
            return "-u8s8 is for the CPU's integer kernels; use it without -ep"
        present = ort().get_available_providers()
        if PROVIDERS[ep] in present:
            return _refuse_device(target) if ep in ON_CUDA else kinds.refuse_float(target)
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
        kind = kinds.kind_of(target)
        if kind is None:
            return cuda_options.arithmetic(target)
        in_file = not kinds.rounding_group(target)
        return Arithmetic(kinds.numbers(target), in_file, kinds.sense(kind))

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


def _refuse_device(target: Target) -> str | None:
    number, count = int(target.option("device", "0")), cuda_devices()
    if number >= count:
        return f"the driver of this machine has {count} CUDA devices, so there is no device {number}"
    return preload_cuda() or None

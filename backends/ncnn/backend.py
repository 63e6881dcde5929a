"""ncnn on the CPU: Winograd convolutions in packed layouts; often the fastest on convolution nets.

The `pnnx` executable converts the ONNX file. ncnn has no batch dimension: tensors of shape (1, C, H,
W), (1, H, W) and (1, N) lose their leading one wherever pnnx took it for the batch; others are refused.

Traps, each with a test:

* `pnnx` reads no external weights, and leaves large files beside its input: it works in the work folder
  on a file with the weights inside, and its other files are deleted.
* The first layer may change a `Mat` on foreign memory in place: inputs are copied into matrices of
  ncnn's own.
* A `Mat` that outlives its extractor crashes: outputs are copied before.
* Workers busy-wait after a run unless told otherwise (`openmp_blocktime`; libgomp reads OMP_WAIT_POLICY
  when it is loaded).
* An unknown operator may be converted wrongly without an error: candidates are verified.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from collage.backends.contract import (
    Arithmetic,
    Array,
    Available,
    CompileContext,
    Executable,
    Preparation,
    SubModel,
    Unavailable,
    threads_of,
)
from collage.backends.machine import process_policy
from collage.backends.machine.hardware import hardware
from collage.backends.ncnn import int8_layers
from collage.backends.ncnn.operators import ONNX_OPERATORS, refuse_forms, refuse_shapes
from collage.backends.ncnn.row_vectors import as_vectors
from collage.backends.options import THREADS, Option, switch
from collage.backends.quantization import kinds
from collage.backends.quantization.backend import QuantizingBackend
from collage.backends.quantization.float_nodes import positions_of, with_float
from collage.backends.quantization.quantize import Kernels
from collage.backends.rewriting.backend import RewritingBackend
from collage.backends.rewriting.rewrite import rewritten
from collage.backends.rewriting.table import REWRITE
from collage.backends.sandbox.native_output import quiet
from collage.backends.standalone import Standalone
from collage.backends.support import conversion, predicates
from collage.backends.support import patterns as p
from collage.partitioner.candidate import bits
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.rules.pattern import Pattern
from collage.partitioner.target import Target

# Part of the keys of costs and conversions: change it when models are converted in another way.
_EDITION = 2
_FILES = ("ncnn.param", "ncnn.bin", "ncnn.py")
_INSTALL = "pip install 'collage-tuner[ncnn]'"
_NOTHING = {"Dropout", "Identity"}  # pnnx leaves these out


class NcnnBackend(QuantizingBackend, RewritingBackend):
    """ncnn through pnnx."""

    name = "ncnn"
    style = "graph"
    kernels = Kernels(float_results=True)
    summary = "ncnn on the CPU: convolution nets of batch size one, converted by pnnx."
    options = (
        THREADS,
        Option(
            "precision",
            "f32",
            "How intermediate values are stored (bf16), or the weights of products (f16).",
            choices=("f32", "bf16", "f16"),
        ),
        Option(
            "winograd",
            "on",
            "Winograd's algorithm for 3x3 convolutions.",
            choices=("on", "off"),
            tunable=("off",),  # of few channels the transforms cost more than they save
            on_trial=True,
        ),
        switch("sgemm", "Convolutions may be computed as matrix products."),
        switch("packing", "Several channels are kept side by side in memory."),
        switch("light", "Values are given back as soon as nothing reads them."),
        REWRITE,
        *(replace(option, is_later=True) for option in kinds.options(kinds.STATIC)),
    )

    def probe(self) -> Available | Unavailable:
        try:
            found = f"{version('ncnn')} pnnx {version('pnnx')} (conversion {_EDITION})"
        except PackageNotFoundError as error:
            return Unavailable(f"{error.name} is not installed", _INSTALL)
        if _converter() is None:
            return Unavailable("the package pnnx has no executable for this platform", _INSTALL)
        return Available(found)

    def check_target(self, target: Target) -> str | None:
        if kinds.kind_of(target) and target.option("precision", "f32") != "f32":
            return "ncnn's int8 layers stand between float32 ones; use -precision=f32"
        if refused := kinds.refuse_float(target):
            return refused
        features = hardware().features
        if target.option("precision", "f32") != "f16" or {"f16c", "asimdhp"} & set(features):
            return None
        return "ncnn reads f16 weights only where the CPU has F16C or ARM's half precision; use -precision=f32"

    def supports(self, index: GraphIndex, node: int, target: Target) -> str | None:
        return predicates.first_refusal(
            index,
            index.nodes[node],
            predicates.refuse_other_ops(ONNX_OPERATORS),
            predicates.refuse_bodies,
            predicates.refuse_unknown_shapes,
            refuse_shapes,
            refuse_forms,
            conversion.refuse_flattening_softmax,
        )

    def refuse_region(self, index: GraphIndex, nodes: int, target: Target) -> str | None:
        if all(index.nodes[i].op_type in _NOTHING for i in bits(nodes)):
            return "nothing in it computes anything, and pnnx crashes on models without operators"
        if kinds.kind_of(target) and not any(int8_layers.suits(index, i) for i in bits(nodes)):
            return "ncnn has no integer layer for anything here; use the target without -quant"
        return super().refuse_region(index, nodes, target)

    def preparation(self, target: Target) -> Preparation | None:
        found = super().preparation(target)
        return None if found is None else replace(found, by=f"{found.by}, groups in float")

    def prepare(self, model: SubModel, target: Target, context: CompileContext) -> SubModel:
        kept = positions_of(target) | int8_layers.positions_in_groups(model.path)
        return super().prepare(model, with_float(target, kept), context)

    def patterns(self, target: Target) -> tuple[Pattern, ...]:
        return (
            # Winograd and packed convolutions apply the activation to the tile in registers.
            *(p.CONV_RELU, p.CONV_CLIP, p.CONV_LEAKY, p.CONV_SIGMOID, p.CONV_HARD_SWISH),
            # pnnx folds batch normalization into the weights.
            *(p.CONV_NORM, p.CONV_NORM_RELU),
            # InnerProduct streams each weight once and applies the activation at the end.
            p.GEMM_RELU,
        )

    def arithmetic(self, target: Target) -> Arithmetic:
        if kind := kinds.kind_of(target):
            return Arithmetic(kinds.numbers(target), True, kinds.sense(kind))
        precision = target.option("precision", "f32")
        if precision == "f16":
            return Arithmetic(
                "f16 weights", False, "pays for products whose weights are larger than the caches"
            )
        if precision == "bf16":
            return Arithmetic(
                "bf16", False, "pays for layers larger than the caches: values are stored in bf16"
            )
        return Arithmetic()

    def compile(self, model: SubModel, target: Target, context: CompileContext) -> Executable:
        if not model.inputs:
            raise CollageError("ncnn computes nothing without an input")
        for spec in (*model.inputs, *model.outputs):
            if spec.dtype != "float32" or not spec.is_static:
                raise CollageError(f"ncnn takes float32 of static shape, and {spec.name!r} is not")
        return NcnnExecutable(model, target, context)


class NcnnExecutable(Executable):
    """A net with matrices for its inputs; data is copied in and out at each run."""

    def __init__(self, model: SubModel, target: Target, context: CompileContext) -> None:
        ncnn = _ncnn()
        self._model = model
        read = rewritten(model, target, context)
        parameters, weights, script = _converted(read, target, context)
        self._kept = (parameters, weights, script) if context.cache_dir is not None else None
        self._batched = [_is_batched(script, i) for i in range(len(model.inputs))]
        _check_layers(ncnn, parameters)
        self._net = ncnn.Net()
        self._files = {"parameters": parameters, "weights": weights}
        self._options = _options(target, context)
        for name, value in self._options.items():
            setattr(self._net.opt, name, value)
        with quiet():
            failed = self._net.load_param(str(parameters)) or self._net.load_model(str(weights))
        if failed:
            raise CollageError("ncnn could not load the converted model")
        self._make_matrices()
        self._inputs: list[Array] = []
        self._bound: tuple[Array | None, ...] = ()
        self._results: tuple[Array, ...] = ()

    def _make_matrices(self) -> None:
        zeros = self._shaped([np.zeros(spec.static_shape, np.float32) for spec in self._model.inputs])
        self._matrices = [_ncnn().Mat(array).clone() for array in zeros]
        self._views = [np.array(matrix, copy=False) for matrix in self._matrices]

    def another(self) -> Executable:
        other = copy.copy(self)
        other._make_matrices()
        return other

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        self._inputs = self._shaped(inputs)
        self._bound = tuple(outputs)

    def run(self) -> None:
        for view, array in zip(self._views, self._inputs, strict=True):
            np.copyto(view, array)
        extractor = self._net.create_extractor()
        for i, matrix in enumerate(self._matrices):
            if extractor.input(f"in{i}", matrix):
                raise CollageError(f"ncnn's converted model has no input {i}")
        self._results = tuple(self._fetch(extractor, i, bound) for i, bound in enumerate(self._bound))

    @property
    def results(self) -> tuple[Array, ...]:
        return self._results

    def standalone(self) -> Standalone:
        settings = {"options": self._options, "batched": self._batched}
        return Standalone("ncnn", "ncnn", self._files, settings)

    def kept_files(self) -> tuple[Path, ...] | None:
        return self._kept

    def close(self) -> None:
        self._views, self._matrices = [], []
        self._net = None  # the last executable on it ends it
        self._inputs, self._bound, self._results = [], (), ()

    def _shaped(self, inputs: Sequence[Array]) -> list[Array]:
        """The same memory, without the dimensions that ncnn's matrices have not."""
        return [
            array.reshape(array.shape[1:]) if batched else array
            for array, batched in zip(inputs, self._batched, strict=True)
        ]

    def _fetch(self, extractor: Any, position: int, bound: Array | None) -> Array:
        spec = self._model.outputs[position]
        failed, matrix = extractor.extract(f"out{position}")
        if failed:
            raise CollageError(f"ncnn could not compute {spec.name!r}")
        seen = np.array(matrix, copy=False)
        if seen.size != int(np.prod(spec.static_shape)):
            raise CollageError(f"ncnn made {spec.name!r} as {seen.shape} instead of {spec.shape}")
        result = np.empty(spec.static_shape, np.float32) if bound is None else bound
        np.copyto(result, seen.reshape(result.shape))
        return result


def _options(target: Target, context: CompileContext) -> dict[str, Any]:
    """The net's options by name."""
    precision = target.option("precision", "f32")
    return {
        "num_threads": threads_of(target, context),
        "openmp_blocktime": 0,
        "use_vulkan_compute": False,
        # 16-bit storage is ncnn's default wherever the CPU has it; precision is the target's choice.
        "use_fp16_packed": False,
        "use_fp16_arithmetic": False,
        "use_fp16_storage": precision == "f16",
        "use_bf16_storage": precision == "bf16",
        "use_bf16_packed": precision == "bf16",
        "use_winograd_convolution": target.option("winograd", "on") == "on",
        "use_sgemm_convolution": target.option("sgemm", "on") == "on",
        "use_packing_layout": target.option("packing", "on") == "on",
        "lightmode": target.option("light", "on") == "on",
    }


def _ncnn() -> Any:
    process_policy.apply_environment()  # OpenMP libraries read it when they are loaded
    with quiet():
        import ncnn
    return ncnn


def _converter() -> Path | None:
    """pnnx's executable, found without importing the package, which needs torch."""
    spec = importlib.util.find_spec("pnnx")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    return next((f for f in (folder / "pnnx", folder / "pnnx.exe") if f.is_file()), None)


def _is_batched(script: Path, position: int) -> bool:
    """True when pnnx took the first dimension of an input for the batch, as only its sample script tells."""
    return (
        re.search(rf"\bin{position}\.numpy\(\), batch_index=0\)", script.read_text(encoding="utf-8"))
        is not None
    )


def _converted(model: SubModel, target: Target, context: CompileContext) -> tuple[Path, Path, Path]:
    """Parameters, weights and sample script for a model, from the cache where they are in it."""
    has_integers = kinds.kind_of(target) is not None
    folder = conversion.converted(
        model.path,
        _FILES,
        f"ncnn {version('pnnx')} {_EDITION}" + (" int8" if has_integers else ""),
        partial(_convert_with_integers if has_integers else _convert, model),
        context.work_dir,
        context.cache_dir,
    )
    parameters, weights, script = (folder / name for name in _FILES)
    return parameters, weights, script


def _convert(model: SubModel, source: Path, folder: Path) -> None:
    """Run pnnx on a model with its weights inside."""
    converter = _converter()
    if converter is None:
        raise CollageError("the package pnnx has no executable for this platform")
    shapes = ",".join(f"[{','.join(map(str, spec.static_shape))}]f32" for spec in model.inputs)
    parameters, weights, script = (folder / name for name in _FILES)
    words = [str(converter), source.name, f"inputshape={shapes}", "fp16=0"]
    words += [f"ncnnparam={parameters}", f"ncnnbin={weights}", f"ncnnpy={script}"]
    words += [f"pnnx{kind}={os.devnull}" for kind in ("param", "bin", "py", "onnx")]
    done = conversion.run_converter(words, folder)
    source.with_suffix(".pnnxsim.onnx").unlink(missing_ok=True)
    said = (done.stdout + done.stderr).strip().splitlines() or ["it said nothing"]
    if done.returncode or not parameters.is_file() or not weights.is_file():
        raise CollageError(f"pnnx could not convert the model ({done.returncode}): {said[-1][:200]}")
    rows = [
        f"in{i}"
        for i, spec in enumerate(model.inputs)
        if len(spec.static_shape) == 2 and spec.static_shape[0] == 1 and not _is_batched(script, i)
    ]
    text = parameters.read_text(encoding="utf-8")
    parameters.write_text(as_vectors(text, rows), encoding="utf-8")


def _convert_with_integers(model: SubModel, source: Path, folder: Path) -> None:
    """Run pnnx on the float form of a model, and give the layers their integers."""
    plain = source.with_name("float.onnx")
    kernels = int8_layers.write_float(source, plain)
    _convert(model, plain, folder)
    plain.unlink()
    parameters, weights = (folder / name for name in _FILES[:2])
    text, content = int8_layers.with_integers(
        parameters.read_text(encoding="utf-8"), weights.read_bytes(), kernels
    )
    parameters.write_text(text, encoding="utf-8")
    weights.write_bytes(content)


def _check_layers(ncnn: Any, parameters: Path) -> None:
    """Name the layers that ncnn does not have: loading fails without that."""
    kinds = {
        line.split()[0]
        for line in parameters.read_text(encoding="utf-8").splitlines()[2:]
        if line.strip()
    }
    unknown = sorted(kind for kind in kinds if ncnn.layer_to_index(kind) < 0)
    if unknown:
        raise CollageError(f"ncnn has no layer for {', '.join(unknown)}")

"""MNN on the CPU: Winograd convolutions and packed (NC4HW4) layouts.

The Python function of MNN's converter converts the ONNX file; its command line tries to install a
telemetry package.

Traps, each with a test:

* Inputs of 64-bit integers, booleans and doubles are refused; outputs are 32-bit integers and are
  widened.
* The array of `Var.read` does not keep its `Var` alive: outputs are copied while it lives.
* Native code prints while it is imported and while it converts
  (`collage.backends.sandbox.native_output`).
* By default it computes 3x3 convolutions of large images in Winograd tiles whose errors reach 1e-3
  (`-winograd`).
* The first runtime in a process decides how many threads all later ones may have.
* An unknown operator may end in a broken model file or a crash: candidates are compiled in a child and
  verified.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
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
    OpTime,
    SubModel,
    Unavailable,
    threads_of,
)
from collage.backends.mnn import script, settings
from collage.backends.mnn.operators import ONNX_OPERATORS, refuse_forms
from collage.backends.options import THREADS
from collage.backends.rewriting.backend import RewritingBackend
from collage.backends.rewriting.rewrite import rewritten
from collage.backends.rewriting.table import REWRITE
from collage.backends.sandbox.native_output import quiet
from collage.backends.standalone import Standalone
from collage.backends.support import conversion, predicates
from collage.backends.support import patterns as p
from collage.backends.support.profile_mapping import ProfileStep, op_times, typical_us
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.lazy import ir
from collage.partitioner.rules.pattern import Pattern
from collage.partitioner.target import Target
from collage.partitioner.tensor import TensorSpec

# Arithmetic on 8-bit integers crashed, comparisons into booleans gave wrong numbers.
_NOT_INSIDE = (
    *("object", "bool", "float64", "float16", "bfloat16"),
    *("int8", "uint8", "int16", "uint16", "uint32", "uint64"),
)
_FILE = "model.mnn"
# Its converter appends these to a value's name.
_OF_CONVERTER = re.compile(r"(_raster_\d+|__group__\d+|__matmul_converted)+\Z")
_AT_BORDER: Mapping[str, str] = {"float32": "float", "int32": "int"}


class MnnBackend(RewritingBackend):
    """MNN through its Module interface."""

    name = "mnn"
    style = "graph"
    summary = "MNN on the CPU: strong on 3x3 and grouped convolutions."
    options = (
        THREADS,
        settings.PRECISION,
        settings.WINOGRAD,
        settings.MEMORY,
        settings.POWER,
        REWRITE,
    )

    def probe(self) -> Available | Unavailable:
        # Importing MNN prints and loads native code, so its installed version is looked up instead.
        try:
            return Available(version("MNN"))
        except PackageNotFoundError:
            return Unavailable("MNN is not installed", "pip install 'collage-tuner[mnn]'")

    def supports(self, index: GraphIndex, node: int, target: Target) -> str | None:
        return predicates.first_refusal(
            index,
            index.nodes[node],
            predicates.refuse_other_ops(ONNX_OPERATORS),
            predicates.refuse_bodies,
            predicates.refuse_dtypes(_NOT_INSIDE),
            predicates.refuse_unknown_shapes,
            refuse_forms,
        )

    def patterns(self, target: Target) -> tuple[Pattern, ...]:
        return (
            # Winograd and packed (NC4HW4) kernels clamp their output tile before they store it.
            *(p.CONV_RELU, p.CONV_CLIP, p.CONV_NORM, p.CONV_NORM_RELU),
            # A product of one row streams each weight once; the bias is its starting value.
            *(p.MATMUL_BIAS, p.GEMM_RELU),
        )

    def arithmetic(self, target: Target) -> Arithmetic:
        return settings.arithmetic(target)

    def mixes_rows(self, target: Target) -> bool:
        return settings.is_integer(target)  # one scale for all rows of an input

    def check_target(self, target: Target) -> str | None:
        return settings.refuse_target(target)

    def refuse_region(self, index: GraphIndex, nodes: int, target: Target) -> str | None:
        return settings.refuse_region(index, nodes, target)

    def opening_lines(self, target: Target, threads: int) -> str | None:
        return script.opening_lines(target, threads)

    def compile(self, model: SubModel, target: Target, context: CompileContext) -> Executable:
        for spec in model.inputs:
            if spec.dtype not in _AT_BORDER:
                raise CollageError(f"MNN takes no input of {spec.dtype}, and {spec.name!r} is one")
            if spec.shape is None or 0 in spec.shape:
                raise CollageError(f"MNN takes no input of shape {spec.shape}, as {spec.name!r} has")
        return MnnExecutable(model, target, context)


class MnnExecutable(Executable):
    """A module with its input variables, made anew for other shapes; data is copied in and out at each run."""

    def __init__(self, model: SubModel, target: Target, context: CompileContext) -> None:
        self._model = model
        self._expr, nn = _import()
        self._path = _converted(rewritten(model, target, context), target, context)
        self._is_kept = context.cache_dir is not None
        self._session_config = {
            "numThread": threads_of(target, context),
            "precision": settings.precision(target),
            **settings.modes(target),
        }
        self._target = target
        precision = {
            "low": self._expr.PrecisionMode.Low,
            "normal": self._expr.PrecisionMode.Normal,
            "high": self._expr.PrecisionMode.High,
        }[settings.precision(target)]
        self._threads = (context.threads, threads_of(target, context))
        self._runtime = _runtime(nn, target, context)
        self._is_static = all(spec.is_static for spec in model.inputs)
        self._module: Any = self._load(nn, precision)
        self._make_variables([spec.shape or () for spec in model.inputs])
        self._turn = threading.Lock()
        self._inputs: tuple[Array, ...] = ()
        self._bound: tuple[Array | None, ...] = ()
        self._results: tuple[Array, ...] = ()

    def _make_variables(self, shapes: Sequence[Sequence[int | None]]) -> None:
        """Input variables of these shapes; free dimensions are 1 until `bind`."""
        self._shapes = [tuple(d or 1 for d in shape) for shape in shapes]
        self._variables = [
            self._expr.placeholder(
                list(shape), self._expr.NCHW, getattr(self._expr, _AT_BORDER[spec.dtype])
            )
            for spec, shape in zip(self._model.inputs, self._shapes, strict=True)
        ]

    def _load(self, nn: Any, precision: Any) -> Any:
        try:
            with quiet():
                module = nn.load_module_from_file(
                    str(self._path),
                    [spec.name for spec in self._model.inputs],
                    [spec.name for spec in self._model.outputs],
                    shape_mutable=not self._is_static,
                    precision_mode=precision,
                    runtime_manager=self._runtime,
                )
        except SystemError:  # its Python module raises this for every failure of native code
            module = None
        if module is None:
            raise CollageError("MNN could not load the model that it converted")
        return module

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        self._inputs, self._bound = tuple(inputs), tuple(outputs)
        for i, array in enumerate(inputs):
            if array.shape != self._shapes[i]:
                if 0 in array.shape:
                    raise CollageError(
                        f"MNN takes no empty input, and {self._model.inputs[i].name!r} is"
                    )
                self._variables[i].resize(list(array.shape))
                self._shapes[i] = array.shape

    def another(self) -> Executable:
        # MNN keeps Python's interpreter lock while it computes, so two modules would never run at once.
        other = copy.copy(self)
        other._make_variables([spec.shape or () for spec in self._model.inputs])
        return other

    def run(self) -> None:
        with self._turn:
            self._compute()

    def _compute(self) -> None:
        for variable, array in zip(self._variables, self._inputs, strict=True):
            variable.write(array)
        made = self._module.forward(self._variables)
        if len(made) != len(self._bound):
            raise CollageError(f"MNN made {len(made)} outputs instead of {len(self._bound)}")
        self._results = tuple(
            self._fetch(variable, i, bound)
            for i, (variable, bound) in enumerate(zip(made, self._bound, strict=True))
        )

    @property
    def results(self) -> tuple[Array, ...]:
        return self._results

    def kept_files(self) -> tuple[Path, ...] | None:
        return (self._path,) if self._is_kept else None

    @property
    def loads_differ(self) -> bool:
        # Rarely a load makes a module that computes wrong values at each run.
        return True

    def standalone(self) -> Standalone:
        told = {
            "threads": [max(self._threads), self._threads[-1]],
            "precision": self._session_config["precision"],
            "modes": settings.modes(self._target),
            "hints": settings.hints(self._target),
            "at_border": [_AT_BORDER[spec.dtype] for spec in self._model.inputs],
        }
        return Standalone("mnn", "MNN", {"model": self._path}, told)

    def profile(self, runs: int) -> list[OpTime]:
        with quiet():
            import MNN

            interpreter = MNN.Interpreter(str(self._path))
            session = interpreter.createSession(self._session_config)
        times: dict[str, list[float]] = {}
        kinds: dict[str, str] = {}
        started = [0]

        def before(tensors: object, step: Any) -> bool:
            started[0] = time.perf_counter_ns()
            return True

        def after(tensors: object, step: Any) -> bool:
            spent_us = (time.perf_counter_ns() - started[0]) / 1000
            name = _OF_CONVERTER.sub("", step.getName())
            times.setdefault(name, []).append(spent_us)
            kinds[name] = step.getType()
            return True

        interpreter.runSession(session)
        for _ in range(runs):
            interpreter.runSessionWithCallBackInfo(session, before, after)
        steps = [
            ProfileStep((name,), kinds[name], typical_us(_per_run(spent, runs)))
            for name, spent in times.items()
        ]
        return op_times(GraphIndex.from_ir(ir.load(self._model.path)), steps, joins_reader=False)

    def close(self) -> None:
        self._module, self._runtime, self._variables = None, None, []
        self._inputs, self._bound, self._results = (), (), ()

    def _fetch(self, variable: Any, position: int, bound: Array | None) -> Array:
        if bound is not None and not bound.size:
            return bound  # MNN fails to read what has no elements
        if variable.data_format == self._expr.NC4HW4:
            variable = self._expr.convert(variable, self._expr.NCHW)
        spec = self._model.outputs[position]
        seen = variable.read()
        shape = _without_added_axes(seen.shape, spec)
        if bound is None:
            return np.array(seen, dtype=predicates.numpy_dtype(spec)).reshape(shape)
        if shape != bound.shape:
            raise CollageError(f"MNN made {spec.name!r} as {seen.shape} instead of {bound.shape}")
        np.copyto(bound, seen.reshape(bound.shape), casting="unsafe")
        return bound


def _per_run(times_us: Sequence[float], runs: int) -> list[float]:
    """What steps of one name, which come one after the other in each run, take together."""
    each = max(1, len(times_us) // runs)
    return [sum(times_us[i : i + each]) for i in range(0, len(times_us), each)]


def _without_added_axes(shape: tuple[int, ...], spec: TensorSpec) -> tuple[int, ...]:
    """The shape of an output as the model has it: convolutions along one axis give a fourth one."""
    if spec.is_static and math.prod(shape) == math.prod(spec.static_shape):
        return spec.static_shape
    rank = len(shape) if spec.shape is None else len(spec.shape)
    return shape[:rank] if set(shape[rank:]) <= {1} else shape


def _runtime(nn: Any, target: Target, context: CompileContext) -> Any:
    threads = threads_of(target, context)
    # MNN starts its threads once in a process, and a later runtime has no more. So the most that a
    # target here uses are started first.
    for count in (max(threads, context.threads), threads):
        config = {"backend": "CPU", "numThread": count, "precision": settings.precision(target)}
        made = nn.create_runtime_manager((config | settings.modes(target),))
    for hint in settings.hints(target):
        made.set_hint(*hint)
    return made


def _import() -> tuple[Any, Any]:
    with quiet():
        import MNN.expr
        import MNN.nn
    return MNN.expr, MNN.nn


def _converted(model: SubModel, target: Target, context: CompileContext) -> Path:
    """MNN's own file for a model, from the cache where it is in it."""
    words = settings.converter_words(target)
    name = " ".join(["mnn", version("MNN"), *words])
    convert = partial(_convert, words)
    folder = conversion.converted(
        model.path, [_FILE], name, convert, context.work_dir, context.cache_dir
    )
    return folder / _FILE


def _convert(given: Sequence[str], source: Path, folder: Path) -> None:
    destination = folder / _FILE
    # MNN's wheel installs its converter under this name, at the top level.
    converter = importlib.util.find_spec("_tools")
    if converter is None or converter.origin is None:
        raise CollageError("the package MNN has no converter for this platform")
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import _tools; _tools.mnnconvert(sys.argv)"
    )
    words = [sys.executable, "-c", program, str(Path(converter.origin).parent)]
    words += ["-f", "ONNX", "--modelFile", str(source), "--MNNModel", str(destination), *given]
    done = conversion.run_converter(words, folder)
    if done.returncode or not destination.is_file() or not destination.stat().st_size:
        raise CollageError(f"MNN's converter refused the model ({done.returncode})")

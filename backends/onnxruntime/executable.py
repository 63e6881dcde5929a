"""Models opened by ONNX Runtime, on the arrays of the caller."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from collage.backends.contract import (
    Array,
    CompileContext,
    Executable,
    OpTime,
    SubModel,
)
from collage.backends.device_memory import DeviceBuffer
from collage.backends.numerics.reference import array_of, ort_value
from collage.backends.onnxruntime import device, profile
from collage.backends.rewriting.rewrite import rewritten
from collage.backends.standalone import Standalone
from collage.backends.support.cuda_options import GRAPHS, is_on
from collage.backends.support.ort_session import (
    open_model,
    open_session,
    options_of,
    session_settings,
)
from collage.backends.support.profile_mapping import op_times
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.lazy import ir
from collage.partitioner.target import HOST_MEMORY, Target
from collage.partitioner.tensor import TensorSpec

_MOST_COPIED_BYTES = 1 << 16
# By name, for inputs and for outputs.
Kept = dict[tuple[str, str], tuple[object, Array]]


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
        self._session: Any
        self._session, self._files = open_session(self._path, target, context)
        self._on_device: device.OnDevice | None = None
        if self._domain != HOST_MEMORY:
            self._on_device = device.OnDevice(self._session, model, self._domain, graphs)
        # A binding copies inputs to a device once, when they are bound.
        self._rebinds = self._on_device is None and domain != HOST_MEMORY
        self._binding: Any = None
        self._may_call = domain == HOST_MEMORY and _is_plain(model)
        self._is_called = False
        self._names = [spec.name for spec in model.outputs]
        self._feed: dict[str, Array] = {}
        self._inputs: tuple[Array, ...] = ()
        self._shapes: tuple[tuple[int, ...], ...] = ()  # as bound; an array may be reshaped in place
        self._bound: tuple[Array | None, ...] = ()
        self._own: list[int] = []
        self._results: tuple[Array, ...] = ()
        # OrtValues do not own their arrays: both are kept until they are bound anew.
        self._kept: Kept = {}

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        before = [*zip(self._inputs, self._shapes, strict=True)]
        self._inputs = tuple(inputs)
        self._shapes = tuple([array.shape for array in inputs])
        if self._binding is not None and _same(outputs, self._bound):
            for spec, (old, shape), new in zip(self._model.inputs, before, inputs, strict=True):
                if new is not old or new.shape != shape:
                    value = _value(new, self._kept, ("in", spec.name))
                    self._binding.bind_ortvalue_input(spec.name, value)
            return
        self._bound = tuple(outputs)
        self._own = [i for i, output in enumerate(outputs) if output is None]
        self._results = tuple(outputs) if not self._own else ()  # type: ignore[arg-type]
        # A plain call costs less than a binding whose outputs are bound anew at each run.
        self._is_called = self._may_call and bool(self._own) and _is_little(outputs)
        self._binding, self._kept = None, {}
        if self._is_called:
            self._feed = dict(zip((spec.name for spec in self._model.inputs), inputs, strict=True))
        elif self._on_device is None:
            self._binding = self._bound_to(self._session, inputs, outputs, self._kept)
        else:
            self._on_device.bind(inputs, outputs)

    def bound_call(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        if self._on_device is not None or self._rebinds:
            return super().bound_call(inputs, outputs)
        kept: Kept = {}
        binding = self._bound_to(self._session, inputs, outputs, kept)
        return partial(_run_bound, self._session, binding, kept)

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
            self._kept = {}
            self._binding = self._bound_to(self._session, self._inputs, self._bound, self._kept)
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

    def kept_files(self) -> tuple[Path, ...] | None:
        return self._files

    def another(self) -> Executable | None:
        if self._on_device is not None or self._rebinds:
            return None
        other = copy.copy(self)  # a session may be called by several threads
        other._binding, other._bound, other._kept, other._feed = None, (), {}, {}
        return other

    def profile(self, runs: int) -> list[OpTime]:
        if is_on(self._target, GRAPHS):  # it sees one launch of a graph
            return []
        options = options_of(self._target, self._context)
        # The rewritten model, which has the optimized graph's name, is in the work folder itself.
        folder = self._context.work_dir / "profile"
        folder.mkdir(exist_ok=True)
        profile.prepare(options, folder)
        session = open_model(self._path, self._target, options)
        binding = self._bound_to(session, self._inputs, self._bound, self._kept)
        for _ in range(runs + 1):
            self._run(session, binding)
        steps = profile.collect(session, folder)
        return op_times(GraphIndex.from_ir(ir.load(self._model.path)), steps)

    def close(self) -> None:
        self._session = self._binding = self._on_device = None
        self._kept, self._feed = {}, {}
        self._inputs, self._shapes, self._bound, self._results = (), (), (), ()

    def _bound_to(
        self, session: Any, inputs: Sequence[Array], outputs: Sequence[Array | None], kept: Kept
    ) -> Any:
        binding = session.io_binding()
        for spec, array in zip(self._model.inputs, inputs, strict=True):
            binding.bind_ortvalue_input(spec.name, _value(array, kept, ("in", spec.name)))
        for spec, output in zip(self._model.outputs, outputs, strict=True):
            if output is not None:
                binding.bind_ortvalue_output(spec.name, _value(output, kept, ("out", spec.name)))
        return binding

    def _run(self, session: Any, binding: Any) -> None:
        for i in self._own:  # else the last run's buffer is used, whose shape may differ
            binding.bind_output(self._model.outputs[i].name, "cpu")
        session.run_with_iobinding(binding)

    def _collect(self) -> None:
        """Fetch the outputs that the runtime allocated in this run."""
        # A binding lists outputs in the order in which they were bound: those with a buffer first.
        values = self._binding.get_outputs()[-len(self._own) :]
        results = list(self._bound)
        for i, value in zip(self._own, values, strict=True):
            results[i] = array_of(value)  # the runtime's memory, which lives as long as the array
        self._results = tuple(results)  # type: ignore[arg-type]


class TextExecutable(Executable):
    """A session with text among its inputs or outputs, which cannot be bound."""

    def __init__(self, model: SubModel, target: Target, context: CompileContext) -> None:
        self._session: Any
        self._session, self._files = open_session(
            rewritten(model, target, context).path, target, context
        )
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

    def kept_files(self) -> tuple[Path, ...] | None:
        return self._files

    def another(self) -> Executable:
        return copy.copy(self)

    def close(self) -> None:
        self._session = None
        self._inputs, self._outputs, self._results = (), (), ()


def _value(array: Array, kept: Kept, place: tuple[str, str]) -> Any:
    value = ort_value(array)
    kept[place] = (value, array)
    return value


def _run_bound(session: Any, binding: Any, kept: Kept) -> None:
    """Run on a binding whose values are kept meanwhile."""
    session.run_with_iobinding(binding)


def _same(some: Sequence[Array | None], others: Sequence[Array | None]) -> bool:
    return all(one is other for one, other in zip(some, others, strict=True))


def _is_plain(model: SubModel) -> bool:
    """Whether a call takes and gives numpy arrays of the model's types."""
    return all(
        np.dtype(spec.dtype).kind in "biufc"
        for spec in (*model.inputs, *model.outputs)
        if spec.dtype != "unknown"
    )


def _is_little(outputs: Sequence[Array | None]) -> bool:
    """Whether a call would copy little to the outputs that have a place, for each that has none."""
    copied = sum(output.nbytes for output in outputs if output is not None)
    return copied <= _MOST_COPIED_BYTES * sum(output is None for output in outputs)


def _received(made: Sequence[Array], bound: Sequence[Array | None]) -> tuple[Array, ...]:
    """Results of a call; those with a place are copied to it."""
    results = []
    for value, place in zip(made, bound, strict=True):
        if place is not None:
            if value.shape != place.shape:  # a copy would repeat it
                raise CollageError(f"an output has shape {value.shape} instead of {place.shape}")
            np.copyto(place, value)
        results.append(value if place is None else place)
    return tuple(results)

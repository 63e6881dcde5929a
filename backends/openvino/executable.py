"""A model compiled by OpenVINO, with one inference request on the caller's arrays.

Traps, each with a test:

* A value that is larger than the tensor given for it is left out, and nothing is said. So a tensor of free
  shape is empty before each call, and its shape is looked at after it.
* An output that is a bare input is never written.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    threads_of,
)
from collage.backends.machine.resident_memory import release_pages
from collage.backends.openvino.attention_masks import shield_masks
from collage.backends.quantization import kinds
from collage.backends.rewriting.rewrite import rewritten
from collage.backends.standalone import Standalone
from collage.backends.support.profile_mapping import ProfileStep, op_times, typical_us
from collage.partitioner.errors import CollageError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.lazy import ir
from collage.partitioner.target import Target

PRECISION = {"f32": "f32", "bf16": "bf16", "f16": "f16"}
# OpenVINO names a Reorder by the maker of its value, two layouts or types (empty for one without a
# name), and the reader.
_FORMAT = r"(?:[A-Ga-g]+(?:\d+[a-g])*|[fuis]\d+|bf16|)"
_REORDER = re.compile(f"(.+)_{_FORMAT}_{_FORMAT}_(.+)")


class OpenVinoExecutable(Executable):
    """A compiled model with one inference request."""

    def __init__(self, model: SubModel, target: Target, context: CompileContext) -> None:
        self._model, self._target, self._context = model, target, context
        self._read = rewritten(model, target, context)
        self._compiled, self._files = _compile(self._read, _properties(target, context), context)
        self._request = self._compiled.create_infer_request()
        self._ports = _ports(self._compiled, model)
        self._passed = _passed_through(self._compiled, self._ports) if _may_pass(model) else {}
        self._bound: _Bound | None = None
        self._on_request: dict[tuple[str, int], Any] = {}
        self._results: tuple[Array, ...] = ()

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        self._bound = self._bound_to(inputs, outputs, self._bound)
        self._results = tuple(outputs) if not self._bound.own else ()  # type: ignore[arg-type]

    def bound_call(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        return partial(self._infer, self._bound_to(inputs, outputs))

    def run(self) -> None:
        assert self._bound is not None
        bound = self._bound
        fresh = {i: self._fresh(i) for i in bound.own if i not in self._passed}
        self._infer(bound)
        if bound.own:
            results = list(bound.outputs)
            for i in bound.own:
                given = i in self._passed
                results[i] = np.array(bound.inputs[self._passed[i]]) if given else fresh[i].data
            self._results = tuple(results)  # type: ignore[arg-type]

    def _bound_to(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array | None],
        before: _Bound | None = None,
    ) -> _Bound:
        """Tensors on arrays; those of the binding before stay where the arrays are the same."""
        tensors: dict[tuple[str, int], Any] = {}
        checked, copies = [], []
        for i, array in enumerate(inputs):
            port = self._ports[i]
            if port is None:
                continue
            kept = (
                before is not None
                and before.inputs[i] is array
                and before.shapes[i] == array.shape  # else it was reshaped in place
            )
            tensors["in", port] = before.tensors["in", port] if before and kept else _tensor(array)
        for i, output in enumerate(outputs):
            if output is None:
                continue
            kept = before is not None and before.outputs[i] is output
            tensor = before.tensors["out", i] if before and kept else _tensor(output)
            tensors["out", i] = tensor
            if i in self._passed:
                copies.append((output, inputs[self._passed[i]]))
            elif output.ndim and self._compiled.output(i).partial_shape.is_dynamic:
                checked.append((tensor, (0,) * output.ndim, ov().Shape(output.shape)))
        own = [i for i, output in enumerate(outputs) if output is None]
        shapes = tuple([array.shape for array in inputs])
        return _Bound(tuple(inputs), shapes, tuple(outputs), tensors, own, checked, copies)

    def _infer(self, bound: _Bound) -> None:
        """Compute once into the tensors of a binding."""
        for place, tensor in bound.tensors.items():
            if self._on_request.get(place) is not tensor:
                self._set(place, tensor)
        for tensor, nothing, _ in bound.checked:
            tensor.shape = nothing
        self._request.infer()
        for tensor, _, shape in bound.checked:
            if tensor.get_shape() != shape:
                raise CollageError(f"OpenVINO made an output that has not the shape {list(shape)}")
        for output, given in bound.copies:
            if output.size != given.size:
                raise CollageError(f"an output has shape {given.shape} instead of {output.shape}")
            np.copyto(output, given.reshape(output.shape))

    def _fresh(self, output: int) -> Any:
        """A new tensor for an output, which the runtime makes as large as it must be."""
        port = self._compiled.output(output)
        shape = port.partial_shape
        tensor = ov().Tensor(
            port.element_type, ov().Shape([0]) if shape.is_dynamic else shape.to_shape()
        )
        self._set(("out", output), tensor)
        return tensor

    def _set(self, place: tuple[str, int], tensor: Any) -> None:
        kind, port = place
        if kind == "in":
            self._request.set_input_tensor(port, tensor)
        else:
            self._request.set_output_tensor(port, tensor)
        self._on_request[place] = tensor

    @property
    def results(self) -> tuple[Array, ...]:
        return self._results

    def another(self) -> Executable:
        other = copy.copy(self)
        other._request = self._compiled.create_infer_request()
        other._bound, other._on_request, other._results = None, {}, ()
        return other

    def standalone(self) -> Standalone | None:
        if self._target.option("precision", "f32") != "f32":
            return None  # the model is changed in memory when it is read
        settings = {
            "properties": _properties(self._target, self._context),
            "ports": list(self._ports),
            "passed": {str(output): given for output, given in self._passed.items()},
        }
        return Standalone("openvino", "openvino", {"model": self._read.path}, settings)

    def kept_files(self) -> tuple[Path, ...] | None:
        return self._files

    def profile(self, runs: int) -> list[OpTime]:
        properties = _properties(self._target, self._context) | {"PERF_COUNT": True}
        compiled, _ = _compile(self._read, properties, self._context)
        request = compiled.create_infer_request()
        assert self._bound is not None
        for port, array in zip(self._ports, self._bound.inputs, strict=True):
            if port is not None:
                request.set_input_tensor(port, _tensor(array))
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
                typical_us(spent),
                _between(name, fused),
            )
            for name, spent in times.items()
        ]
        return op_times(GraphIndex.from_ir(ir.load(self._model.path)), steps)

    def close(self) -> None:
        self._request = self._compiled = None
        self._bound, self._results = None, ()
        self._on_request.clear()


@dataclass(frozen=True, eq=False)
class _Bound:
    """Arrays, and the tensors on their memory.

    Args:
        shapes: of the inputs when they were bound.
        tensors: by direction and port.
        own: the outputs without an array.
        checked: tensors of free shape, each with an empty shape and the one that it must have after a call.
        copies: outputs that are an input, which OpenVINO does not write.
    """

    inputs: tuple[Array, ...]
    shapes: tuple[tuple[int, ...], ...]
    outputs: tuple[Array | None, ...]
    tensors: Mapping[tuple[str, int], Any]
    own: Sequence[int]
    checked: Sequence[tuple[Any, tuple[int, ...], Any]]
    copies: Sequence[tuple[Array, Array]]


def _tensor(array: Array) -> Any:
    """A tensor on an array's memory, under numpy's usual type: OpenVINO knows int64 as long, not as long long."""
    return ov().Tensor(array.view(np.dtype(array.dtype.name)), shared_memory=True)


def _ports(compiled: Any, model: SubModel) -> tuple[int | None, ...]:
    """The port of each input of the sub-model; None for one that was optimized away, after which the next move up."""
    if len(compiled.inputs) == len(model.inputs):
        return tuple(range(len(model.inputs)))
    found = {name: i for i, port in enumerate(compiled.inputs) for name in port.get_names()}
    ports = tuple(found.get(spec.name) for spec in model.inputs)
    if len(compiled.inputs) != sum(port is not None for port in ports):
        raise CollageError("OpenVINO has dropped some inputs and renamed others")
    return ports


def _may_pass(model: SubModel) -> bool:
    """Whether an output may be a bare input: some two have as many elements, as far as that is known."""
    given, made = (
        {math.prod(spec.static_shape) if spec.is_static else None for spec in specs}
        for specs in (model.inputs, model.outputs)
    )
    return None in given | made or not given.isdisjoint(made)


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


def ov() -> Any:
    """OpenVINO's module."""
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


def _compile(
    model: SubModel, properties: dict[str, Any], context: CompileContext
) -> tuple[Any, tuple[Path, ...] | None]:
    """The compiled model, and the files in the cache that it was loaded from, if any."""
    core = ov().Core()
    core.set_property({"ENABLE_MMAP": True})
    source: Any = str(model.path)
    folder = None
    if context.cache_dir is not None:
        # One for each model, so that it is known which files belong to it.
        words = json.dumps([source, properties, ov().get_version()]).encode()
        folder = context.cache_dir / f"openvino-{hashlib.sha256(words).hexdigest()}"
        core.set_property({"CACHE_DIR": str(folder)})
    if properties["INFERENCE_PRECISION_HINT"] != "f32":
        read = core.read_model(source)
        source = read if shield_masks(read, ov()) else source
    compiled = core.compile_model(source, "CPU", properties)
    if folder is None or not _is_loaded(compiled):
        if folder is not None:
            # What is verified now is what later loads find.
            del compiled
            compiled = core.compile_model(source, "CPU", properties)
        # Most weights were copied into layouts of its own, and the mapped ones are not read again. Those in the cache
        # are, by the next load, so they stay in the system's memory.
        release_pages(model.path.parent)
    if folder is None:
        return compiled, None
    blobs = tuple(sorted(folder.glob("*.blob"))) if _is_loaded(compiled) else ()
    with contextlib.suppress(OSError):
        os.utime(folder)  # the time of the last use decides what is removed for space
    return compiled, blobs or None


def _is_loaded(compiled: Any) -> bool:
    """True when a compiled model was read from the cache."""
    return bool(compiled.get_property("LOADED_FROM_CACHE"))


def _properties(target: Target, context: CompileContext) -> dict[str, Any]:
    partitioner = target.option("partitioner", "own")
    more = {} if partitioner == "own" else {"TBB_PARTITIONER": partitioner.upper()}
    if target.option("snippets", "on") == "off":
        more["SNIPPETS_MODE"] = "DISABLE"
    return {
        **more,
        "INFERENCE_PRECISION_HINT": PRECISION[target.option("precision", "f32")],
        "PERFORMANCE_HINT": target.option("hint", "latency").upper(),
        # Each request that runs at once has streams and threads of its own.
        "NUM_STREAMS": str(int(target.option("streams", "1")) * context.instances),
        "INFERENCE_NUM_THREADS": threads_of(target, context) * context.instances,
        "ENABLE_CPU_PINNING": target.option("pinning", "off") == "on",
        "CPU_DENORMALS_OPTIMIZATION": target.option("denormals", "keep") == "flush",
        "PERF_COUNT": False,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": kinds.rounding_group(target),
    }

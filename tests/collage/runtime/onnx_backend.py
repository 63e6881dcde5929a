"""ONNX's own backend interface over the executor: every node a partition of its own.

ONNX defines an interface (`onnx.backend.base`) by which its test suite drives any runtime. This
implementation takes each model the whole way of a tuned one (ingest, extraction, compiling, executor),
with the plan that has the most borders: one partition per node, and the targets take turns. So the
suite tests what no single runtime tests: what crosses a border, and that no target's word on a node is
wrong.

Terms: it is a target's *turn* when the node before went to the target before it. A target that refuses
a node, by its predicate or when it compiles it, passes the node on to the next one.

Models are read in this process: run those of strangers in a sandboxed child.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from collage.backends.contract import Executable
from collage.backends.registry import target_spec
from collage.model.sub_models import RegionFiles
from collage.partitioner.errors import BadInputError, CollageError, NoPlanError
from collage.partitioner.graph.model import Model
from collage.partitioner.ingest.normalize import normalize
from collage.partitioner.target import Target
from collage.runtime.compiled import CompiledRegions
from collage.runtime.executor import Executor
from collage.runtime.step import Step

Array = np.ndarray


class CollageBackend(Backend):  # type: ignore[misc]
    """Runs ONNX models with every node on the next target in turn; subclass it for other targets.

    Attributes:
        targets: who takes turns, the first one first.
        threads: threads of one call.
    """

    targets: tuple[str, ...] = ("onnxruntime", "openvino")
    threads: int = 1

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Make a model ready to run.

        Models whose inputs have free dimensions are ingested when the first inputs tell their sizes.

        Raises:
            CollageError: ingest does not take the model, or every target refuses some node.
        """
        return PreparedModel(model, [Target.parse(text) for text in cls.targets], cls.threads)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for the CPU."""
        return device == "CPU"


class PreparedModel(BackendRep):  # type: ignore[misc]
    """A model that runs on alternating targets.

    Attributes:
        placed: the target of each node, once the model is compiled.
    """

    def __init__(self, model: onnx.ModelProto, targets: Sequence[Target], threads: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="collage-onnx-")
        self._compiled = CompiledRegions(threads)
        self._close = weakref.finalize(self, _close, self._folder, self._compiled)
        self._targets = tuple(targets)
        self._inputs = _variables(model.graph)
        self._source = Path(self._folder.name) / "source.onnx"
        self._source.write_bytes(model.SerializeToString())
        self._executors: dict[tuple[tuple[str, int], ...], tuple[Model, Executor]] = {}
        self.placed: tuple[Target, ...] = ()
        if not any(_free_axes(value) for value in self._inputs):
            self._executor({})

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """Compute the outputs, in the model's order.

        Args:
            inputs: values of the inputs that are no initializers, in the model's order.

        Raises:
            BadInputError: the inputs are not those of the model.
        """
        if len(inputs) != len(self._inputs):
            raise BadInputError(f"the model has {len(self._inputs)} inputs, not {len(inputs)}")
        feed = {v.name: np.asarray(given) for v, given in zip(self._inputs, inputs, strict=True)}
        dims = {
            f"{v.name}:{axis}": feed[v.name].shape[axis]
            for v in self._inputs
            for axis in _free_axes(v)
            if axis < feed[v.name].ndim
        }
        model, executor = self._executor(dims)
        for name in model.index.inputs:
            spec, value = model.index.values[name], feed[name]
            if (value.dtype.name, value.shape) != (spec.dtype, spec.shape):
                raise BadInputError(
                    f"input {name!r} must be {spec.dtype} of shape {spec.shape}, "
                    f"not {value.dtype.name} of {value.shape}"
                )
        executor.feed(feed)
        executor.run()
        made = executor.results()
        return tuple(
            _constant(model, name) if name in model.index.constants else made[name]
            for name in model.index.outputs
        )

    def close(self) -> None:
        """Give back memory and files; may be called twice."""
        self._close()

    def _executor(self, dims: Mapping[str, int]) -> tuple[Model, Executor]:
        key = tuple(sorted(dims.items()))
        if key not in self._executors:
            folder = Path(self._folder.name) / f"{len(self._executors)}"
            model = Model.open(normalize(self._source, folder, dims).path)
            index = model.index
            steps = self._compile(model, folder)
            inputs = [index.values[name] for name in index.inputs]
            outputs = [name for name in index.outputs if name not in index.constants]
            executor = Executor(steps, inputs, outputs)
            executor.bind()
            self._executors[key] = model, executor
        return self._executors[key]

    def _compile(self, model: Model, folder: Path) -> list[Step]:
        regions = RegionFiles(model, folder)
        specs = [target_spec(target) for target in self._targets]
        steps, placed, turn = [], [], 0
        for node, info in enumerate(model.index.nodes):
            region = regions.get(1 << node)
            name = f"{folder.name}/{region.path.parent.name}"
            executable: Executable | None = None
            reasons = []
            for i in range(turn, turn + len(specs)):
                spec = specs[i % len(specs)]
                reason = spec.supports(model.index, node)
                try:
                    executable = self._compiled.get(name, region, spec.target) if not reason else None
                except CollageError as error:
                    reason = str(error)
                if executable is not None:
                    steps.append(Step(executable, region.inputs, region.outputs))
                    placed.append(spec.target)
                    turn = i + 1
                    break
                reasons.append(f"{spec.target}: {reason}")
            if executable is None:
                raise NoPlanError(f"no target takes {info.op} {info.name!r}: {'; '.join(reasons)}")
        self.placed = tuple(placed)
        return steps


def _close(folder: tempfile.TemporaryDirectory[str], compiled: CompiledRegions) -> None:
    compiled.close()
    folder.cleanup()


def _variables(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller gives: before IR 4 weights had to stand among them too."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def _free_axes(value: onnx.ValueInfoProto) -> list[int]:
    dims = value.type.tensor_type.shape.dim
    return [axis for axis, dim in enumerate(dims) if not dim.HasField("dim_value")]


def _constant(model: Model, name: str) -> Array:
    tensor = model.ir.graph.initializers[name].const_value
    assert tensor is not None
    return np.array(tensor.numpy())

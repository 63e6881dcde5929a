"""A model run at many sizes by the reference runtime, its dimensions free; for a sandboxed child."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes

from collage.backends.numerics.reference import reference_session, run_session, table_bounds
from collage.backends.numerics.seeded import seeded_inputs
from collage.partitioner.errors import ModelError
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.ingest.expressions import size_of
from collage.partitioner.ingest.model_dims import ModelDims, TensorDims
from collage.partitioner.tensor import TensorSpec
from collage.shapes.proofs import OutOfTriesError

_NODE = re.compile(r"running (\w+) node\. Name:\s?'([^']*)'")
_STATUS = re.compile(r"Status Message: (.*)", re.DOTALL)
_LOADING = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed:)?")
# Where in its source ONNX Runtime found a fault.
_SOURCE = re.compile(r"^/\S+:\d+ [^(]*\((?:[^()]|\([^()]*\))*\)( const)? ")
_LONGEST = 200
# Sizes at which one run takes more than this share of the time are not proposed.
_SLOW_SHARE = 1 / 12
_NUMPY = {"float": "float32", "double": "float64", "string": "object"}


class Trials:
    """Runs of one model.

    Args:
        path: an ONNX file whose dimensions are free.
        model: its dimensions.
        values: of scalar integer inputs.
        limit_s: after this time no run is started.

    Raises:
        ModelError: the reference cannot load the model.
    """

    def __init__(self, path: Path, model: ModelDims, values: Mapping[str, int], limit_s: float) -> None:
        self._model = model
        self._values = values
        self._end_s = time.monotonic() + limit_s
        try:
            self._session = reference_session(path)
        except Exception as error:  # of ONNX Runtime, which has no base class for them
            raise ModelError(
                f"ONNX Runtime, whose results are the reference, cannot load the model: {_why(error)}"
            ) from None
        self._bounds = _bounds(path)
        self._slow_s = limit_s * _SLOW_SHARE
        self._known: dict[tuple[tuple[str, int], ...], str | None] = {}
        self._seconds: dict[tuple[tuple[str, int], ...], float] = {}
        self._notes: dict[str, None] = {}

    def run(self, sizes: Mapping[str, int]) -> str | None:
        """Run at sizes of all free dimensions, on seeded inputs.

        Returns:
            What is wrong, with the node where it is known; None where the model runs.

        Raises:
            OutOfTriesError: the time is over.
        """
        key = tuple(sorted(sizes.items()))
        if key not in self._known:
            if time.monotonic() > self._end_s:
                raise OutOfTriesError
            begin_s = time.monotonic()
            self._known[key] = self._fault(sizes)
            self._seconds[key] = time.monotonic() - begin_s
        return self._known[key]

    def run_quickly(self, sizes: Mapping[str, int]) -> str | None:
        """The same, where a run that takes much of the time is a fault too."""
        fault = self.run(sizes)
        seconds = self._seconds[tuple(sorted(sizes.items()))]
        return fault or (f"it runs {seconds:.0f} s" if seconds > self._slow_s else None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Where sizes of outputs contradict the names of their dimensions, a sentence each."""
        return tuple(self._notes)

    def _fault(self, sizes: Mapping[str, int]) -> str | None:
        bound = {**sizes, **{name: s.value(sizes) for name, s in self._model.derived.items()}}
        specs = [
            TensorSpec(
                tensor.name,
                _dtype(tensor),
                tuple(_size(tensor, axis, bound) for axis in range(len(tensor.dims))),
            )
            for tensor in self._model.inputs
        ]
        if negative := [spec.name for spec in specs if any(size < 0 for size in spec.static_shape)]:
            return f"input {negative[0]} would have a size below 0"
        try:
            inputs = seeded_inputs(specs, 0, self._bounds)
            for spec in specs:
                if spec.name in self._values:
                    full = np.full(spec.static_shape, self._values[spec.name], spec.dtype)
                    inputs[spec.name] = full
            names = list(dict.fromkeys(output.name for output in self._model.outputs))
            made = run_session(self._session, inputs, names)
        except MemoryError:
            return "it needs more memory than a child may have"
        except Exception as error:  # of ONNX Runtime, which has no base class for them
            return _told(error)
        for output in self._model.outputs:
            self._notes.update(dict.fromkeys(_contradictions(output, made[output.name].shape, bound)))
        return None


def _size(tensor: TensorDims, axis: int, bound: Mapping[str, int]) -> int:
    dim = tensor.dims[axis]
    return dim if isinstance(dim, int) else bound[tensor.key(axis)]


def _dtype(tensor: TensorDims) -> str:
    return _NUMPY.get(tensor.dtype, tensor.dtype)


def _bounds(path: Path) -> dict[str, int]:
    try:
        model = ir.load(path)
        passes.NameFixPass()(model)  # an index needs a name of each node
        return table_bounds(GraphIndex.from_ir(model))
    except Exception:  # only ingest brings every model into the form that an index needs
        return {}


def _why(error: Exception) -> str:
    """What ONNX Runtime says, without where in its source and which file."""
    text = _LOADING.sub("", str(error))
    status = _STATUS.search(text)
    said = _SOURCE.sub("", " ".join((status[1] if status else text).split()))
    return said if len(said) <= _LONGEST else said[:_LONGEST] + " …"


def _told(error: Exception) -> str:
    node, short = _NODE.search(str(error)), _why(error)
    return f"node {node[2]!r} ({node[1]}) fails: {short}" if node else f"it does not run: {short}"


def _contradictions(
    output: TensorDims, shape: tuple[int, ...], bound: Mapping[str, int]
) -> Iterator[str]:
    if not output.dims:  # so exporters also write what they do not know
        return
    if len(shape) != len(output.dims):
        yield f"output {output.name} has rank {len(shape)}, but the file says {len(output.dims)}"
        return
    for axis, (dim, size) in enumerate(zip(output.dims, shape, strict=True)):
        said = size_of(dim, bound) if isinstance(dim, str) else None
        if said is not None and said != size:
            yield (
                f"axis {axis} of output {output.name} is {size} in a run where its name {dim!r} says {said}; "
                "the name is ignored"
            )

"""An example backend: a few float32 operators computed by numpy. See docs/write-a-backend.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from collage.backends.contract import (
    Array,
    Available,
    Backend,
    CompileContext,
    Executable,
    SubModel,
    Unavailable,
)
from collage.backends.options import THREADS
from collage.backends.support import predicates
from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.target import Target

_COMPUTE: Mapping[str, Callable[..., Array]] = {
    "Add": np.add,
    "Mul": np.multiply,
    "Sub": np.subtract,
    "MatMul": np.matmul,
    "Neg": np.negative,
    "Relu": lambda x: np.maximum(x, 0),
    "Tanh": np.tanh,
}


class NumpyBackend(Backend):
    """Each operator is one call of numpy."""

    name = "numpy"
    style = "library"
    summary = "A few float32 operators computed by numpy; an example."
    options = (THREADS,)

    def probe(self) -> Available | Unavailable:
        return Available(np.__version__)

    def supports(self, index: GraphIndex, node: int, target: Target) -> str | None:
        return predicates.first_refusal(
            index,
            index.nodes[node],
            predicates.refuse_other_ops(_COMPUTE),
            predicates.refuse_unknown_shapes,
            _refuse_other_than_float32,
        )

    def compile(self, model: SubModel, target: Target, context: CompileContext) -> Executable:
        return NumpyExecutable(model)


def _refuse_other_than_float32(index: GraphIndex, node: NodeInfo) -> str | None:
    for spec in (*predicates.input_specs(index, node), *predicates.output_specs(index, node)):
        if spec.dtype != "float32":
            return f"numpy is given float32 only, and {spec.name!r} is {spec.dtype}"
    return None


class NumpyExecutable(Executable):
    """The nodes in their order, and the values that they read and make by name."""

    def __init__(self, model: SubModel) -> None:
        loaded = ir.load(model.path)
        self._model = model
        self._nodes = GraphIndex.from_ir(loaded).nodes
        self._weights = {
            name: value.const_value.numpy()
            for name, value in loaded.graph.initializers.items()
            if value.const_value is not None
        }
        self._inputs: tuple[Array, ...] = ()
        self._bound: tuple[Array | None, ...] = ()
        self._results: tuple[Array, ...] = ()

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> None:
        self._inputs, self._bound = tuple(inputs), tuple(outputs)

    def run(self) -> None:
        values = dict(self._weights)
        for spec, array in zip(self._model.inputs, self._inputs, strict=True):
            values[spec.name] = array
        for node in self._nodes:
            made = _COMPUTE[node.op_type](*(values[name] for name in node.inputs))
            values[node.outputs[0]] = made
        results = []
        for spec, bound in zip(self._model.outputs, self._bound, strict=True):
            result = np.empty(spec.static_shape, np.float32) if bound is None else bound
            np.copyto(result, values[spec.name])
            results.append(result)
        self._results = tuple(results)

    @property
    def results(self) -> tuple[Array, ...]:
        return self._results

    def close(self) -> None:
        self._weights, self._inputs, self._bound, self._results = {}, (), (), ()

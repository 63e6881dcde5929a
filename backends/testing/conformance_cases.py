"""Small models for the conformance suite: pieces of real networks and border cases.

A case is ONNX text. Inputs named in `weights` become initializers with seeded values; the other
inputs get seeded values at each run, so two seeds give two different runs.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx_ir.passes import common as passes

from collage.backends.contract import Array
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.lazy import ir
from collage.partitioner.tensor import TensorSpec


@dataclass(frozen=True)
class Case:
    """A small model."""

    name: str  # unique
    text: str  # the graph as ONNX text
    weights: tuple[str, ...] = ()  # inputs that are initializers; integers are taken from `constants`
    # initializers by value, e.g. shapes and axes.
    constants: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    high: int = 7  # upper bound (exclusive) of integer inputs
    dynamic: bool = False  # output shapes depend on values
    rebind: bool = False  # also used for the checks of binding, closing and profiling

    def write(self, path: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """Write the model; the specs of its inputs and outputs."""
        model = self._model()
        index = GraphIndex.from_ir(model)
        ir.save(model, path)
        return (
            tuple(index.values[name] for name in index.inputs),
            tuple(index.values[name] for name in index.outputs),
        )

    def inputs(self, seed: int) -> tuple[Array, ...]:
        """Seeded values of the inputs, in order."""
        index = GraphIndex.from_ir(self._model())
        specs = [index.values[name] for name in index.inputs]
        return tuple(_values(spec, self.high, f"{self.name}{spec.name}{seed}") for spec in specs)

    def _model(self) -> ir.Model:
        header = '<ir_version: 10, opset_import: ["" : 18]>'
        model = ir.from_onnx_text(f"{header}\n{self.name} {self.text}")
        for i, node in enumerate(model.graph):
            node.name = f"{node.op_type}_{i}"
        for value in list(model.graph.inputs):
            if value.name in self.weights or value.name in self.constants:
                model.graph.inputs.remove(value)
                value.const_value = ir.tensor(self._constant(value), name=value.name)
                model.graph.register_initializer(value)
        passes.ShapeInferencePass()(model)
        return model

    def _constant(self, value: ir.Value) -> Array:
        assert value.name is not None and value.dtype is not None and value.shape is not None
        shape = tuple(int(d) for d in value.shape)  # type: ignore[arg-type]
        dtype = value.dtype.numpy()
        if value.name in self.constants:
            return np.array(self.constants[value.name], dtype).reshape(shape)
        spec = TensorSpec(value.name, dtype.name, shape)
        return np.asarray(_values(spec, self.high, self.name + value.name) * 0.3, dtype)


def _values(spec: TensorSpec, high: int, seed: str) -> Array:
    generator = np.random.default_rng(zlib.crc32(seed.encode()))
    shape = spec.static_shape
    if spec.dtype == "bool":
        return np.array(generator.integers(0, 2, shape), bool)
    if np.issubdtype(np.dtype(spec.dtype), np.integer):
        return np.array(generator.integers(0, high, shape), spec.dtype)
    return np.array(generator.standard_normal(shape), spec.dtype)


CASES: tuple[Case, ...] = (
    Case(
        "conv_block",
        """(float[1,8,14,14] x, float[16,8,3,3] w, float[16] b, float[16,16,3,3] w2, float[16] b2)
        => (float[1,16,7,7] y) {
            c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w, b)
            r = Relu(c)
            p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
            d = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(p, w2, b2)
            s = Add(d, p)
            y = Relu(s)
        }""",
        weights=("w", "b", "w2", "b2"),
        rebind=True,
    ),
    Case(
        "grouped_conv",
        """(float[1,8,9,9] x, float[8,4,5,5] w, float[8] b) => (float[1,8,1,1] y) {
            c = Conv<kernel_shape = [5, 5], group = 2, strides = [2, 2], pads = [2, 2, 2, 2]>(x, w, b)
            y = GlobalAveragePool(c)
        }""",
        weights=("w", "b"),
    ),
    Case(
        "batch_norm",
        """(float[1,8,6,6] x, float[8] s, float[8] b, float[8] m, float[8] v) => (float[1,8,6,6] y) {
            n = BatchNormalization(x, s, b, m, v)
            y = LeakyRelu<alpha = 0.1>(n)
        }""",
        weights=("s", "b", "m"),
        constants={"v": (0.5, 1.5, 0.7, 1.1, 0.4, 2.0, 1.0, 0.9)},
    ),
    Case(
        "local_response",
        """(float[1,8,6,6] x) => (float[1,8,3,3] y) {
            n = LRN<size = 5, alpha = 0.01, beta = 0.75>(x)
            y = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(n)
        }""",
    ),
    Case(
        "dense",
        """(float[1,16] x, float[16,32] w, float[32] b, float[8,32] v, float[8] c) => (float[1,8] y) {
            m = MatMul(x, w)
            a = Add(m, b)
            t = Tanh(a)
            g = Gemm<transB = 1>(t, v, c)
            y = Softmax<axis = -1>(g)
        }""",
        weights=("w", "b", "v", "c"),
        rebind=True,
    ),
    Case(
        "broadcast",
        """(float[1,3,4] x, float[3,1] u, float[1,1,4] v) => (float[1,3,4] y) {
            a = Add(x, u)
            m = Mul(a, v)
            s = Sigmoid(m)
            y = Sub(s, u)
        }""",
        rebind=True,
    ),
    Case(
        "several_outputs",
        """(float[1,6] x, float[1,6] z) => (float[1,6] a, float[1,12] c, float[1,6] r) {
            a = Add(x, z)
            r = Relu(a)
            c = Concat<axis = 1>(a, r)
        }""",
        rebind=True,
    ),
    Case(
        "batch_of_three",
        """(float[3,8,10,10] x, float[4,8,3,3] w, float[5,256] v) => (float[3,5] y) {
            c = Conv<kernel_shape = [3, 3]>(x, w)
            f = Flatten(c)
            y = Gemm<transB = 1>(f, v)
        }""",
        weights=("w", "v"),
    ),
    Case(
        "attention",
        """(float[1,5,8] q, float[1,5,8] k, float[1,5,8] v) => (float[1,5,8] y) {
            t = Transpose<perm = [0, 2, 1]>(k)
            s = MatMul(q, t)
            p = Softmax<axis = -1>(s)
            y = MatMul(p, v)
        }""",
    ),
    Case(
        "layer_norm",
        """(float[2,5,16] x, float[16] s, float[16] b) => (float[2,5,16] y) {
            y = LayerNormalization<axis = -1, epsilon = 1e-5>(x, s, b)
        }""",
        weights=("s", "b"),
    ),
    Case(
        "reshapes",
        """(float[2,3,4] x, int64[2] shape, int64[1] axes) => (float[8,3] y, float[1,2,12] z) {
            r = Reshape(x, shape)
            y = Transpose<perm = [1, 0]>(r)
            f = Flatten<axis = 1>(x)
            z = Unsqueeze(f, axes)
        }""",
        constants={"shape": (3, 8), "axes": (0,)},
    ),
    Case(
        "five_dimensions",
        """(float[1,2,4,6,6] x, float[4,2,3,3,3] w) => (float[1,4,4,6,6] y) {
            c = Conv<kernel_shape = [3, 3, 3], pads = [1, 1, 1, 1, 1, 1]>(x, w)
            y = Relu(c)
        }""",
        weights=("w",),
    ),
    Case(
        "lstm",
        """(float[4,1,6] x, float[1,20,6] w, float[1,20,5] r, float[1,40] b) => (float[4,1,1,5] y) {
            y = LSTM<hidden_size = 5>(x, w, r, b)
        }""",
        weights=("w", "r", "b"),
    ),
    Case(
        "scalars",
        """(float x, float y) => (float z) {
            s = Add(x, y)
            z = Tanh(s)
        }""",
    ),
    Case(
        "reduce_to_scalar",
        """(float[3,4] x) => (float y) {
            y = ReduceMean<keepdims = 0>(x)
        }""",
    ),
    Case(
        "no_inputs",
        """(float[3,4] w) => (float[3,4] y) {
            n = Neg(w)
            y = Relu(n)
        }""",
        weights=("w",),
    ),
    Case(
        "embedding",
        """(int64[1,5] ids, float[7,4] table) => (float[1,5,4] y) {
            g = Gather(table, ids)
            y = Relu(g)
        }""",
        weights=("table",),
    ),
    Case(
        "small_integers",
        """(int32[2,3] x, int32[3] z) => (int32[2,3] y) {
            a = Add(x, z)
            y = Mul(a, x)
        }""",
    ),
    Case(
        "choice",
        """(bool[2,3] c, float[2,3] x, float[2,3] z) => (float[2,3] y, bool[2,3] n) {
            y = Where(c, x, z)
            n = Not(c)
        }""",
    ),
    Case(
        "comparison",
        """(float[2,3] x, float[3] z) => (bool[2,3] y) {
            y = Greater(x, z)
        }""",
    ),
    Case(
        "best_class",
        """(float[2,9] x) => (int64[2] y) {
            y = ArgMax<axis = 1, keepdims = 0>(x)
        }""",
    ),
    Case(
        "double",
        """(double[2,3] x) => (double[2,3] y) {
            y = Exp(x)
        }""",
    ),
    Case(
        "one_node",
        """(float[1,2,3,3] x) => (float[1,2,3,3] y) {
            y = Relu(x)
        }""",
    ),
    Case(
        "nothing_to_do",
        """(float[2,6] x) => (float[2,6] y) {
            y = Dropout(x)
        }""",
    ),
    Case(
        "found_values",
        """(float[2,6] x) => (int64[2,n] y) {
            r = Relu(x)
            y = NonZero(r)
        }""",
        dynamic=True,
    ),
)

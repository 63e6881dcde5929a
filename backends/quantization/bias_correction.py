"""Biases that make up for what int8 rounding shifts on average.

Rounded weights move each channel of an output by a constant where inputs have a mean, as after a ReLU.
Later layers do not average that out. So every integer kernel runs beside its float original on the same
values, and the mean difference of each channel goes into the bias. A runtime folds an addition after a
product into that product, so it costs nothing.

Corrections are whole multiples of a *grain*: two runtimes compute a sample with other last bits, and
weights must not follow these.

Source: Nagel et al. 2019, "Data-Free Quantization Through Weight Equalization and Bias Correction",
section 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage.backends.numerics.reference import reference_session, run_session
from collage.partitioner.lazy import ir

Array = np.ndarray

# Steps of an accumulator, for each root of the number of its products.
_GRAIN = 4.0
_AXES_ARE_AN_INPUT = 18  # of ReduceMean, from this opset on


def correct_biases(quantized: ir.Model, source: Path, samples: Sequence[Mapping[str, Array]]) -> None:
    """Change a model in place so that its integer kernels are right on average.

    Args:
        quantized: QDQ: each kernel's first input and its weight come from a DequantizeLinear.
        source: the file of its float model, with nodes of the same names; temporary files lie beside
            it.
        samples: of the calibration: every input by name.
    """
    probe = _BesideFloat(source)
    kernels = [kernel for node in quantized.graph if (kernel := _kernel(node)) is not None]
    kernels = [kernel for kernel in kernels if probe.watch(kernel)]
    for kernel, shift in zip(kernels, probe.shifts(samples), strict=True):
        kernel.correct(quantized.graph, shift)


@dataclass(frozen=True)
class _Kernel:
    """An integer kernel: node, roundings of its input, weight, bias, and the step of each channel's sums."""

    node: ir.Node
    roundings: tuple[ir.Node, ir.Node]
    weight: ir.Node
    weight_shape: tuple[int, ...]
    bias: Array | None
    step: Array

    def correct(self, graph: ir.Graph, shift: Array) -> None:
        """Add the mean difference of each channel."""
        summands = math.prod(self.weight_shape) / len(self.step)
        grain = 2.0 ** math.floor(math.log2(_GRAIN * summands**0.5))
        steps = np.rint(shift / self.step / grain) * grain
        if self.node.op_type == "MatMul":
            _add_after(graph, self.node, (steps * self.step).astype(np.float32))
            return
        before = 0.0 if self.bias is None else np.rint(self.bias / self.step)
        ends = np.iinfo(np.int32)
        whole = np.clip(before + steps, ends.min, ends.max).astype(np.int32)
        name = f"{self.node.name}/bias"
        stored = constant_value(graph, f"{name}/int32", whole)
        scale = constant_value(graph, f"{name}/scale", self.step.astype(np.float32))
        term = ir.node("DequantizeLinear", [stored, scale], {"axis": 0}, name=name)
        term.outputs[0].name = name
        graph.insert_before(self.node, term)
        self.node.resize_inputs(3)
        self.node.replace_input_with(2, term.outputs[0])


def _kernel(node: ir.Node) -> _Kernel | None:
    """A node whose input and weight are dequantized and whose bias is constant, as a kernel; else None."""
    if node.op_type not in ("Conv", "MatMul", "Gemm"):
        return None
    x, weight = (_maker(value, "DequantizeLinear") for value in node.inputs[:2])
    rounding = None if x is None else _maker(x.inputs[0], "QuantizeLinear")
    if x is None or weight is None or rounding is None:
        return None
    stored, scale, entry = _array(weight.inputs[0]), _array(weight.inputs[1]), _array(x.inputs[1])
    if stored is None or scale is None or entry is None:
        return None
    if node.op_type == "MatMul" and any(
        u.op_type == "QuantizeLinear" for u, _ in node.outputs[0].uses()
    ):
        return None  # an addition in between would end the integer kernel
    bias = None
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = _bias(node.inputs[2])
        if bias is None:
            return None
    turned = node.op_type == "Conv" or bool(node.attributes.get_int("transB", 0))
    step = scale.astype(np.float64) * entry.astype(np.float64)
    step = np.broadcast_to(step, stored.shape[0 if turned else 1])
    return _Kernel(node, (rounding, x), weight, stored.shape, bias, step)


class _BesideFloat:
    """The float model, with integer kernels beside their originals and their mean differences as its outputs."""

    def __init__(self, source: Path) -> None:
        self._path = source.with_name("probe.onnx")
        self._model = ir.load(source)
        ir.external_data.load_to_model(self._model)
        self._graph = self._model.graph
        self._graph.outputs.clear()
        self._originals = {node.name: node for node in self._graph}
        self._made = 0

    def watch(self, kernel: _Kernel) -> bool:
        """Add a kernel beside its original; False where the float model has no such node."""
        original = self._originals.get(kernel.node.name)
        if original is None:
            return False
        x = original.inputs[0]
        for node in kernel.roundings:
            x = self._add(node.op_type, [x, *map(self._copy, node.inputs[1:])], node.attributes)
        weight = kernel.weight
        w = self._add(weight.op_type, [self._copy(v) for v in weight.inputs], weight.attributes)
        bias = None if kernel.bias is None else self._constant(kernel.bias.astype(np.float32))
        terms = [x, w] if bias is None else [x, w, bias]
        y = self._add(kernel.node.op_type, terms, kernel.node.attributes)
        difference = self._add("Sub", [original.outputs[0], y])
        axes = [0]
        if kernel.node.op_type == "Conv":
            axes = [0, *range(2, len(kernel.weight_shape))]
        else:
            rows = self._constant(np.array([-1, len(kernel.step)], np.int64))
            difference = self._add("Reshape", [difference, rows])
        mean = self._mean(difference, axes)
        mean.dtype, mean.shape = ir.DataType.FLOAT, ir.Shape([len(kernel.step)])
        self._graph.outputs.append(mean)
        return True

    def shifts(self, samples: Sequence[Mapping[str, Array]]) -> list[Array]:
        """For each kernel the mean difference over samples, of shape (channels,)."""
        names = [value.name or "" for value in self._graph.outputs]
        if not names:
            return []
        weights = self._path.with_suffix(".weights")
        ir.save(self._model, self._path, external_data=weights.name)
        try:
            session = reference_session(self._path)
            found = [run_session(session, sample, names) for sample in samples]
        finally:
            self._path.unlink()
            weights.unlink(missing_ok=True)
        return [np.mean([values[name] for values in found], axis=0) for name in names]

    def _mean(self, value: ir.Value, axes: list[int]) -> ir.Value:
        keep = {"keepdims": ir.AttrInt64("keepdims", 0)}
        if self._model.opset_imports[""] >= _AXES_ARE_AN_INPUT:
            return self._add("ReduceMean", [value, self._constant(np.array(axes, np.int64))], keep)
        return self._add("ReduceMean", [value], {**keep, "axes": ir.AttrInt64s("axes", axes)})

    def _add(
        self, op: str, inputs: list[ir.Value | None], attributes: Mapping[str, ir.Attr] | None = None
    ) -> ir.Value:
        node = ir.Node("", op, inputs, dict(attributes or {}), name=self._name())
        node.outputs[0].name = f"{node.name}/made"
        self._graph.append(node)
        return node.outputs[0]

    def _copy(self, value: ir.Value | None) -> ir.Value | None:
        array = _array(value)
        return None if array is None else self._constant(array)

    def _constant(self, array: Array) -> ir.Value:
        return constant_value(self._graph, self._name(), array)

    def _name(self) -> str:
        self._made += 1
        return f"probe/{self._made}"


def shift_name(node: ir.Node) -> str:
    """Name of the node that corrects a product."""
    return f"{node.name}/shifted"


def _add_after(graph: ir.Graph, node: ir.Node, array: Array) -> None:
    """Add a constant to what a node makes."""
    made = node.outputs[0]
    shift = constant_value(graph, f"{node.name}/shift", array)
    take_place(
        graph, made, ir.Node("", "Add", [made, shift], name=shift_name(node)), f"{made.name}/unshifted"
    )


def take_place(graph: ir.Graph, value: ir.Value, node: ir.Node, name: str) -> None:
    """Insert a new node between a value and all its readers; its result takes the value's name.

    Args:
        graph: that has the value.
        value: made by a node.
        node: in no graph yet.
        name: of the value from now on.
    """
    maker, result = value.producer(), node.outputs[0]
    assert maker is not None
    ir.convenience.replace_all_uses_with(value, result, replace_graph_outputs=True)
    node.replace_input_with(0, value)
    result.name, value.name = value.name, name
    result.type, result.shape = value.type, value.shape
    graph.insert_after(maker, node)


def _bias(value: ir.Value) -> Array | None:
    """A constant of each channel as float64, stored as it is or as int32 with a scale; else None."""
    producer = _maker(value, "DequantizeLinear")
    if producer is None:
        array = _array(value)
    else:
        stored, scale = (_array(v) for v in producer.inputs[:2])
        array = None if stored is None or scale is None else stored.astype(np.float64) * scale
    return None if array is None or array.ndim != 1 else array.astype(np.float64)


def _maker(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type == op_type else None


def _array(value: ir.Value | None) -> Array | None:
    return None if value is None or value.const_value is None else value.const_value.numpy()


def constant_value(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """A new initializer."""
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
    )
    graph.register_initializer(value)
    return value

"""Rare large channels of activations moved into weights: `-smooth=on` beside `-quant=static_int8`.

In transformers a few channels after a layer normalization are many times larger than the others, and
one range for all of them leaves few steps for the rest. So scale and bias of the normalization are
divided by a factor for each channel, and the rows of the products that read it are multiplied by it.
The float model computes the same.

The factor is the root of the largest activation over the largest weight of a channel, as SmoothQuant
has it with a strength of one half.

Invariant: only products with constant weights read what is scaled.

Source: Xiao et al. 2023, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
Language Models".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage.backends.options import Option
from collage.backends.quantization.bias_correction import constant_value
from collage.backends.quantization.float_model import computed
from collage.partitioner.lazy import ir
from collage.partitioner.target import Target

Array = np.ndarray

_NAME, _OFF, _ON = "smooth", "off", "on"
SMOOTH = Option(
    _NAME,
    _OFF,
    "Move large channels after layer normalizations into weights (SmoothQuant; see docs/int8.md).",
    choices=(_OFF, _ON),
)
_STRENGTH = 0.5
_LEAST = 1e-5
# Of the mantissa of a factor.
_BITS = 5


def is_smooth(target: Target) -> bool:
    """Whether a target smooths activations."""
    return target.option(_NAME, _OFF) == _ON


def without_smooth(target: Target) -> Target:
    """The same target without the option."""
    return Target(target.backend, tuple(pair for pair in target.options if pair[0] != _NAME))


@dataclass(frozen=True)
class _Affine:
    """The end of a normalization: where its scale and bias stand, its result, and the products that alone read it."""

    constants: tuple[tuple[ir.Node, int], ...]  # nodes and positions of their inputs
    result: ir.Value
    products: tuple[ir.Node, ...]


def smooth(model: ir.Model, path: Path, samples: Sequence[Mapping[str, Array]]) -> int:
    """Smooth a float model in place; how many normalizations were changed.

    Args:
        model: with its weights inside.
        path: beside it temporary files may lie.
        samples: every input by name.
    """
    found = [affine for node in model.graph if (affine := _affine(node)) is not None]
    if not found:
        return 0
    largest = _largest(model, path, [affine.result for affine in found], samples)
    for affine, activation in zip(found, largest, strict=True):
        weight = np.max([np.abs(_rows(product)).max(axis=1) for product in affine.products], axis=0)
        factor = _factor(activation, weight)
        for node, position in affine.constants:
            _replace(model.graph, node, position, _array(node.inputs[position]) / factor)
        for product in affine.products:
            turned = bool(product.attributes.get_int("transB", 0))
            stored = _array(product.inputs[1])
            _replace(model.graph, product, 1, stored * (factor if turned else factor[:, None]))
    return len(found)


def _factor(activation: Array, weight: Array) -> Array:
    """For each channel; 1 where it is always zero. It has few bits, since last bits differ between runtimes."""
    factor = np.maximum(activation, _LEAST) ** _STRENGTH / np.maximum(weight, _LEAST) ** (1 - _STRENGTH)
    used = (activation > 0) & (weight > 0)
    mantissa, exponent = np.frexp(np.where(used, np.maximum(factor, _LEAST), 1.0))
    rounded = np.ldexp(np.rint(np.ldexp(mantissa, _BITS)), exponent - _BITS)
    return np.asarray(rounded, dtype=np.float32)


def _affine(node: ir.Node) -> _Affine | None:
    """A scale and a bias for each channel, of constants, that products alone read; else None.

    That is a LayerNormalization over the last axis, or the Mul and the Add at the end of one that is
    written out.
    """
    constants: list[tuple[ir.Node, int]] = []
    if node.op_type == "LayerNormalization":
        if node.attributes.get_int("axis", -1) not in (-1, _last(node)):
            return None
        if any(value.uses() for value in node.outputs[1:]):
            return None
        constants = [(node, position) for position in range(1, len(node.inputs))]
    elif node.op_type == "Add":
        places = [i for i, value in enumerate(node.inputs) if _is_vector(value)]
        other = node.inputs[1 - places[0]] if len(places) == 1 else None
        maker = None if other is None else other.producer()
        if maker is None or maker.op_type != "Mul" or len(list(maker.outputs[0].uses())) != 1:
            return None
        scales = [i for i, value in enumerate(maker.inputs) if _is_vector(value)]
        if len(scales) != 1 or maker.outputs[0].is_graph_output():
            return None
        constants = [(node, places[0]), (maker, scales[0])]
    if not constants or not all(_is_vector(n.inputs[position]) for n, position in constants):
        return None
    result = node.outputs[0]
    uses = list(result.uses())
    if (
        result.is_graph_output()
        or not uses
        or not all(_is_product(user, place) for user, place in uses)
    ):
        return None
    products = tuple(user for user, _ in uses)
    channels = {_array(n.inputs[position]).size for n, position in constants}
    if channels != {len(_rows(product)) for product in products} or len(channels) != 1:
        return None
    return _Affine(tuple(constants), result, products)


def _is_vector(value: ir.Value | None) -> bool:
    if value is None or value.const_value is None:
        return False
    return len(value.const_value.shape) == 1 and value.dtype == ir.DataType.FLOAT


def _last(node: ir.Node) -> int:
    shape = node.outputs[0].shape
    return -1 if shape is None else len(shape) - 1


def _is_product(node: ir.Node, place: int) -> bool:
    if (
        node.op_type not in ("MatMul", "Gemm")
        or place != 0
        or node.attributes.get_int("transA", 0) != 0
    ):
        return False
    weight = node.inputs[1]
    return weight is not None and weight.const_value is not None and len(weight.const_value.shape) == 2


def _rows(product: ir.Node) -> Array:
    """The weights with a row for each channel of the input."""
    stored = _array(product.inputs[1])
    return stored.T if product.attributes.get_int("transB", 0) else stored


def _array(value: ir.Value | None) -> Array:
    assert value is not None and value.const_value is not None
    return value.const_value.numpy()


def _replace(graph: ir.Graph, node: ir.Node, position: int, array: Array) -> None:
    """Give a node a constant of its own: others may read the one that it had."""
    name = f"{node.name}/smooth/{position}"
    node.replace_input_with(position, constant_value(graph, name, array.astype(np.float32)))


def _largest(
    model: ir.Model, path: Path, values: Iterable[ir.Value], samples: Sequence[Mapping[str, Array]]
) -> list[Array]:
    """The largest magnitude of each channel (last axis) of some values, over samples."""
    probe = model.clone()
    by_name = {value.name: value for node in probe.graph for value in node.outputs}
    asked = [by_name[value.name] for value in values]
    names = [value.name or "" for value in asked]
    found: list[Array] = []
    for made in computed(probe, asked, path.with_name("smooth.onnx"), samples):
        tops = [np.abs(made[name]).reshape(-1, made[name].shape[-1]).max(axis=0) for name in names]
        found = [np.maximum(a, b) for a, b in zip(found, tops, strict=True)] if found else tops
    return found

"""Int8 weights alone: products keep float inputs in the file.

A runtime with kernels for it (OpenVINO) rounds the inputs while it runs, in groups with a scale for
each. Another runtime computes the same file with float products. Weights have a scale for each channel
and are rounded by the inputs in the samples (`error_feedback`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage.backends.quantization.bias_correction import constant_value
from collage.backends.quantization.error_feedback import LARGEST, fed_back
from collage.backends.quantization.gram_matrices import gram_matrices, slices
from collage.backends.support.conversion import write_streamed
from collage.partitioner.lazy import ir

Array = np.ndarray


def write_weights(
    source: Path, destination: Path, samples: Sequence[Mapping[str, Array]], names: frozenset[str]
) -> None:
    """Write a model with int8 weights, each behind a DequantizeLinear.

    Args:
        source: the float model, weights inside; a temporary file lies beside it.
    """
    model = ir.load(source)
    products = [product for node in model.graph if node.name in names and (product := _product(node))]
    inputs = {product.read: len(product.weights) for product in products}
    for grams in gram_matrices(source, inputs, samples):
        for product in products:
            if product.read in grams:
                product.replace(model.graph, grams[product.read])
    write_streamed(model, destination)


@dataclass(frozen=True)
class _Product:
    """A product: its node, the name of its input, its constant weights as (inputs, channels)."""

    node: ir.Node
    read: str
    weights: Array
    is_turned: bool

    def replace(self, graph: ir.Graph, grams: Sequence[Array]) -> None:
        """Replace the float weights by int8."""
        largest = np.abs(self.weights).max(axis=0)
        steps = np.where(largest > 0, largest / LARGEST, 1.0).astype(np.float32)
        parts = zip(slices(len(self.weights)), grams, strict=True)
        found = np.concatenate([fed_back(self.weights[part], steps, gram) for part, gram in parts])
        stored = np.ascontiguousarray(found.T if self.is_turned else found)
        name = f"{self.node.name}/weights"
        inputs = [
            constant_value(graph, f"{name}/int8", stored),
            constant_value(graph, f"{name}/scale", steps),
        ]
        axis = {"axis": 0 if self.is_turned else 1}
        term = ir.node("DequantizeLinear", inputs, axis, name=name)
        term.outputs[0].name = name
        graph.insert_before(self.node, term)
        self.node.replace_input_with(1, term.outputs[0])


def _product(node: ir.Node) -> _Product | None:
    read, weight = node.inputs[:2]
    if read is None or read.is_initializer() or weight is None or weight.const_value is None:
        return None
    turned = bool(node.attributes.get_int("transB", 0))
    array = weight.const_value.numpy()
    return _Product(node, read.name or "", array.T if turned else array, turned)

"""Int8 weights alone: products keep float inputs in the file.

A runtime with kernels for it (OpenVINO) rounds the inputs while it runs, in groups with a scale for
each. Another runtime computes the same file with float products. Weights have a scale for each channel
and are rounded by the inputs in the samples (`error_feedback`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collage.backends.numerics.reference import reference_session, run_session
from collage.backends.quantization.bias_correction import constant_value
from collage.backends.quantization.error_feedback import LARGEST, fed_back
from collage.backends.support.conversion import write_streamed
from collage.partitioner.lazy import ir

Array = np.ndarray

# Inputs in one Gram matrix; more are taken in parts.
_MOST_INPUTS = 4096
# Of all Gram matrices at a time.
_MOST_BYTES = 2**30


def write_weights(
    source: Path, destination: Path, samples: Sequence[Mapping[str, Array]], names: frozenset[str]
) -> None:
    """Write a model with int8 weights, each behind a DequantizeLinear.

    Args:
        source: the float model, weights inside; a temporary file lies beside it.
    """
    model = ir.load(source)
    products = [product for node in model.graph if node.name in names and (product := _product(node))]
    for some in _within_memory(products):
        grams = _grams(source, some, samples)
        for product in some:
            product.replace(model.graph, grams[product.read])
    write_streamed(model, destination)


@dataclass(frozen=True)
class _Product:
    """A product: its node, the name of its input, its constant weights as (inputs, channels)."""

    node: ir.Node
    read: str
    weights: Array
    is_turned: bool

    @property
    def gram_bytes(self) -> int:
        inputs = len(self.weights)
        return 4 * inputs * min(inputs, _MOST_INPUTS)

    def replace(self, graph: ir.Graph, grams: Sequence[Array]) -> None:
        """Replace the float weights by int8."""
        largest = np.abs(self.weights).max(axis=0)
        steps = np.where(largest > 0, largest / LARGEST, 1.0).astype(np.float32)
        parts = zip(_slices(len(self.weights)), grams, strict=True)
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


def _within_memory(products: Sequence[_Product]) -> Iterator[list[_Product]]:
    """The products in order, in lists whose Gram matrices fit."""
    taken: list[_Product] = []
    for product in products:
        if taken and sum(p.gram_bytes for p in (*taken, product)) > _MOST_BYTES:
            yield taken
            taken = []
        taken.append(product)
    if taken:
        yield taken


def _grams(
    source: Path, products: Sequence[_Product], samples: Sequence[Mapping[str, Array]]
) -> dict[str, list[Array]]:
    """Gram matrices by name of the input, one for each part of it."""
    grams: dict[str, list[Array]] = {}
    for values in _values(source, {product.read for product in products}, samples):
        for name, value in values.items():
            rows = value.reshape(-1, value.shape[-1])
            share = np.float32(max(1, len(rows)) * len(samples))
            found = [rows[:, part].T @ rows[:, part] / share for part in _slices(rows.shape[1])]
            grams[name] = (
                [a + b for a, b in zip(grams[name], found, strict=True)] if name in grams else found
            )
    return grams


def _values(
    source: Path, names: set[str], samples: Sequence[Mapping[str, Array]]
) -> Iterator[dict[str, Array]]:
    """Values of a model by name, sample by sample."""
    model = ir.load(source)
    given = [value.name or "" for value in model.graph.inputs if value.name in names]
    made = [value for node in model.graph for value in node.outputs if value.name in names]
    if not made:
        yield from ({name: sample[name] for name in given} for sample in samples)
        return
    model.graph.outputs.clear()
    model.graph.outputs.extend(made)
    for value in made:
        value.dtype = value.dtype or ir.DataType.FLOAT
    probe = source.with_name("probe.onnx")
    write_streamed(model, probe)
    session = reference_session(probe)
    probe.unlink()
    for sample in samples:
        found = run_session(session, sample, [value.name or "" for value in made])
        yield {**found, **{name: sample[name] for name in given}}


def _slices(inputs: int) -> list[slice]:
    return [slice(start, start + _MOST_INPUTS) for start in range(0, inputs, _MOST_INPUTS)]

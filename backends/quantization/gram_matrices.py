"""What products read in the samples, as second moments: each input's mean products with the others.

A matrix for many inputs is taken in parts, and as many matrices at a time as fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from collage.backends.quantization.float_model import computed
from collage.partitioner.lazy import ir

Array = np.ndarray

# Inputs in one Gram matrix; more are taken in parts.
_MOST_INPUTS = 4096
# Of all Gram matrices at a time.
_MOST_BYTES = 2**30


def slices(inputs: int) -> list[slice]:
    """The parts of a product's inputs, each with a Gram matrix of its own."""
    return [slice(start, start + _MOST_INPUTS) for start in range(0, inputs, _MOST_INPUTS)]


def gram_matrices(
    source: Path, inputs: Mapping[str, int], samples: Sequence[Mapping[str, Array]]
) -> Iterator[dict[str, list[Array]]]:
    """Gram matrices by name of a value, one for each part of it; some values at a time.

    Args:
        source: the float model; a temporary file lies beside it.
        inputs: how many numbers a row of a value has, by its name.
    """
    for names in _within_memory(inputs):
        yield _grams(source, names, samples)


def _within_memory(inputs: Mapping[str, int]) -> Iterator[set[str]]:
    """The names in order, in sets whose Gram matrices fit."""
    taken: set[str] = set()
    taken_bytes = 0
    for name, count in inputs.items():
        size_bytes = 4 * count * min(count, _MOST_INPUTS)
        if taken and taken_bytes + size_bytes > _MOST_BYTES:
            yield taken
            taken, taken_bytes = set(), 0
        taken.add(name)
        taken_bytes += size_bytes
    if taken:
        yield taken


def _grams(
    source: Path, names: set[str], samples: Sequence[Mapping[str, Array]]
) -> dict[str, list[Array]]:
    grams: dict[str, list[Array]] = {}
    for values in _values(source, names, samples):
        for name, value in values.items():
            rows = value.reshape(-1, value.shape[-1])
            share = np.float32(max(1, len(rows)) * len(samples))
            found = [rows[:, part].T @ rows[:, part] / share for part in slices(rows.shape[1])]
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
    found = computed(model, made, source.with_name("probe.onnx"), samples)
    for sample, values in zip(samples, found, strict=True):
        yield {**values, **{name: sample[name] for name in given}}

"""Binding: a normalized model with free dimensions gets sizes; its nodes and names stay.

What is folded at these sizes only tells shapes. So a plan for the bound model is one for the free model too.

Invariant: a shape is written only where inference or folding proves it for these sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from collage.partitioner.errors import ModelError
from collage.partitioner.graph import weights
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.ingest import constant_folding
from collage.partitioner.ingest.expressions import size_of
from collage.partitioner.ingest.normalize import (
    INLINE_LIMIT_BYTES,
    NormalizedInfo,
    Runtime,
    notes_on_shapes,
    write_normalized,
)
from collage.partitioner.lazy import ir


def bind_sizes(
    source: Path, destination: Path, sizes: Mapping[str, int], runtime: Runtime | None = None
) -> NormalizedInfo:
    """Write a normalized model with sizes for its free dimensions as `destination/model.onnx`.

    Args:
        source: the normalized model.
        sizes: of each free dimension, by name.
        runtime: asked for shapes that ONNX cannot infer.

    Raises:
        ModelError: a free dimension has no size, or values get absurd sizes.
    """
    destination.mkdir(parents=True, exist_ok=True)
    path = destination / "model.onnx"
    model = ir.load(source)
    for value in model.graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape([_size(dim, sizes, value) for dim in value.shape])
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for output in node.outputs:
            if output.type is None or isinstance(output.type, ir.TensorType):
                output.shape = None
    constant_folding.infer(model)
    _learn(model, _folded_shapes(model))
    if runtime is not None and (open_ones := _open(model)):
        proto = weights.structure(
            model,
            model.graph,
            model.graph.inputs,
            list(dict.fromkeys((*model.graph.outputs, *open_ones))),
        )
        weights.write(proto, list(model.graph.initializers.values()), path, INLINE_LIMIT_BYTES)
        specs = runtime.types(path, [value.name or "" for value in open_ones])
        _learn(model, {name: spec.shape for name, spec in specs.items() if spec.is_static})
    write_normalized(model, path)
    index = GraphIndex.from_ir(model)
    return NormalizedInfo(
        path=path,
        inputs=tuple(index.values[name] for name in index.inputs),
        warnings=tuple(notes_on_shapes(index)),
    )


def _size(dim: int | ir.SymbolicDim, sizes: Mapping[str, int], value: ir.Value) -> int:
    if isinstance(dim, int):
        return dim
    size = None if dim.value is None else size_of(dim.value, sizes)
    if size is None:
        raise ModelError(f"input {value.name!r} has the dimension {dim.value!r}, which has no size")
    if size < 0:
        raise ModelError(f"input {value.name!r} has the dimension {dim.value} = {size}")
    return size


def _folded_shapes(model: ir.Model) -> dict[str, tuple[int | None, ...] | None]:
    """The shapes that values have once everything is folded."""
    folded = constant_folding.fold(model.clone(), [])
    made = [value for node in folded.graph for value in node.outputs]
    return {
        value.name: tuple(dim if isinstance(dim, int) else None for dim in value.shape)
        for value in (*made, *folded.graph.initializers.values())
        if value.name and value.shape is not None
    }


def _learn(model: ir.Model, shapes: Mapping[str, tuple[int | None, ...] | None]) -> None:
    """Give values that inference left open the shapes that are known; then infer what follows from them."""
    changed = False
    for value in _open(model):
        known = shapes.get(value.name or "")
        if known is None or (value.shape is not None and len(value.shape) != len(known)):
            continue
        own = value.shape or [None] * len(known)
        value.shape = ir.Shape(
            [mine if isinstance(mine, int) else other for mine, other in zip(own, known, strict=True)]
        )
        changed = True
    if changed:
        constant_folding.infer(model)


def _open(model: ir.Model) -> list[ir.Value]:
    """Tensors of the main graph of which some dimension is not known."""
    return [
        value
        for node in model.graph
        for value in node.outputs
        if value.name
        and isinstance(value.type, ir.TensorType)
        and (value.shape is None or not all(isinstance(dim, int) for dim in value.shape))
    ]

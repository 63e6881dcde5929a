"""Extraction: a sub-graph becomes a model of its own, ready for a runtime.

Inputs and outputs stand in the order of `SubGraph.inputs` and `.outputs`; nodes keep their names.
Values that bodies capture become inputs, captured constants initializers. The IR is shared, not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collage.partitioner.errors import ModelError
from collage.partitioner.graph import weights
from collage.partitioner.graph.model import Model
from collage.partitioner.graph.sub_graph import SubGraph
from collage.partitioner.lazy import ir
from collage.partitioner.tensor import TensorSpec


@dataclass(frozen=True)
class ExtractedModel:
    """A sub-graph as an ONNX file."""

    path: Path  # the file; weights over 1 GiB together, or all that are mapped, lie beside it
    inputs: tuple[TensorSpec, ...]  # graph inputs, in the order of `SubGraph.inputs`
    # graph outputs, in the order of `SubGraph.outputs` unless others were asked for
    outputs: tuple[TensorSpec, ...]


def extract(
    model: Model,
    nodes: int,
    directory: Path,
    outputs: Sequence[str] | None = None,
    *,
    mapped: bool = False,
) -> ExtractedModel:
    """Write a sub-graph (bitset of nodes) as `directory/model.onnx`.

    Args:
        outputs: values made inside, in place of those that are needed outside.
        mapped: whether large weights lie beside the file at any size, so that runtimes map them.

    Raises:
        ModelError: the sub-graph is empty or not convex, or one of its outputs has no known type.
    """
    sub_graph = SubGraph(model.index, nodes)
    if not nodes or not sub_graph.is_convex:
        raise ModelError("only a non-empty convex sub-graph can be extracted")
    path = directory / "model.onnx"
    made = sub_graph.outputs if outputs is None else tuple(outputs)
    proto = weights.structure(
        model.ir,
        [model.nodes[i] for i in sub_graph.members],
        [model.values[name] for name in sub_graph.inputs],
        [model.values[name] for name in made],
    )
    directory.mkdir(parents=True, exist_ok=True)
    weights.write(proto, constants(model, sub_graph), path, 0 if mapped else None)
    return ExtractedModel(
        path=path,
        inputs=tuple(model.index.values[name] for name in sub_graph.inputs),
        outputs=tuple(model.index.values[name] for name in made),
    )


def constants(model: Model, sub_graph: SubGraph) -> list[ir.Value]:
    """The initializers that a sub-graph uses, its bodies included, in order of first use."""
    used = (name for i in sub_graph.members for name in model.index.nodes[i].used)
    return [model.values[n] for n in dict.fromkeys(used) if n in model.index.constants]


def with_outputs(model: Model, value_names: Sequence[str], directory: Path) -> Path:
    """Write the whole model with more outputs as `directory/model.onnx`.

    The outputs are the model's own, then the new ones in the order given, each once.

    Raises:
        ModelError: no node makes one of the values.
    """
    unknown = [name for name in value_names if name not in model.index.producer]
    if unknown:
        raise ModelError(f"no node makes the value {', '.join(map(repr, unknown))}")
    graph = model.ir.graph
    names = dict.fromkeys((*model.index.outputs, *value_names))
    proto = weights.structure(model.ir, graph, graph.inputs, [model.values[name] for name in names])
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "model.onnx"
    weights.write(proto, list(graph.initializers.values()), path)
    return path

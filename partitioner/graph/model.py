"""A normalized model in memory: the IR with lazy weights, and its index.

External weights stay on disk until they are read; `sha256` reads them all when it is asked for.

Invariants: `nodes[i]` is node *i* of `index`; the IR is shared and must not be changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import onnx_ir

from collage.partitioner.errors import ModelError
from collage.partitioner.graph import weights
from collage.partitioner.graph.graph_index import GraphIndex
from collage.partitioner.graph.mapped_file import open_mapped


@dataclass(frozen=True, eq=False)
class Model:
    """A normalized model (see `collage.partitioner.ingest.normalize`)."""

    path: Path  # the ONNX file; external weights lie beside it
    ir: onnx_ir.Model = field(repr=False)  # the model, weights lazy
    index: GraphIndex = field(repr=False)  # the structure of its main graph

    @classmethod
    def open(cls, path: Path | str, *, mapped: bool = False) -> Model:
        """Open a normalized model or an artifact.

        Args:
            mapped: leave weights in the file, which must stay as it is while the model is used.

        Raises:
            ModelError: the file is missing, not an ONNX model, or not normalized.
        """
        path = Path(path)
        if not path.is_file():
            raise ModelError(f"there is no model file {path}")
        try:
            model = open_mapped(path) if mapped else onnx_ir.load(path)
        except Exception as error:
            raise ModelError(f"{path.name} is not an ONNX model: {error}") from error
        return cls(path, model, GraphIndex.from_ir(model))

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of structure and weights, this project's own metadata left out (`weights.digest`)."""
        return weights.digest(self.ir)

    @cached_property
    def nodes(self) -> tuple[onnx_ir.Node, ...]:
        """The nodes of the main graph in the index's order."""
        return tuple(self.ir.graph)

    @cached_property
    def values(self) -> Mapping[str, onnx_ir.Value]:
        """Every value of the main graph by name."""
        graph = self.ir.graph
        named = {v.name: v for v in (*graph.inputs, *graph.initializers.values()) if v.name}
        return named | {v.name: v for node in graph for v in node.outputs if v.name}

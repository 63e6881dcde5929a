"""Small graphs written as ONNX text, and candidates read back as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import common

from collage.partitioner.candidate import Candidate, bits
from collage.partitioner.graph.graph_index import GraphIndex


@dataclass(frozen=True)
class TextModel:
    """A model from text; nodes without a name are called after operator and position (Relu1)."""

    ir: ir.Model
    index: GraphIndex


def text_model(body: str, opset: int = 20) -> TextModel:
    """A model from the text of its graph: `g (float[4] x) => (float[4] y) { y = Relu(x) }`.

    Shapes are inferred.
    """
    header = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    model = common.ShapeInferencePass()(ir.from_onnx_text(f"{header}\n{body}")).model
    for i, node in enumerate(model.graph):
        node.name = node.name or f"{node.op_type}{i}"
    return TextModel(model, GraphIndex.from_ir(model))


def names(index: GraphIndex, nodes: int) -> str:
    """`Conv0 Relu1` for a set of nodes."""
    return " ".join(index.nodes[i].name for i in bits(nodes))


def dump(index: GraphIndex, candidates: Iterable[Candidate]) -> str:
    """One line `target | rule | nodes` per candidate, in the order given."""
    return "\n".join(f"{c.target} | {c.rule} | {names(index, c.nodes)}" for c in candidates)

"""Nodes that draw random numbers, those in bodies too: no two runs of a model with such agree."""

from __future__ import annotations

import onnx_ir as ir

from collage.partitioner.graph.canonical import bodies_of
from collage.partitioner.graph.model import Model

_DRAWS = frozenset(
    {
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"),
        *("RandomUniform", "RandomUniformLike"),
    }
)
_TRAINING = 2  # which input of a Dropout says that values are dropped


def random_nodes(model: Model) -> list[str]:
    """What of a model draws random numbers, or may, each as a text."""
    found = []
    for node in model.nodes:
        bodies = [body for attribute in node.attributes.values() for body in bodies_of(attribute)]
        if _draws(node):
            found.append(f"node {node.name!r} ({node.op_type})")
        found += [
            f"node {inner.name!r} ({inner.op_type}) inside {node.name!r} ({node.op_type})"
            for body in bodies
            for inner in ir.traversal.RecursiveGraphIterator(body)
            if _draws(inner)
        ]
    return found


def _draws(node: ir.Node) -> bool:
    return node.op_type in _DRAWS or (node.op_type == "Dropout" and _may_drop(node))


def _may_drop(node: ir.Node) -> bool:
    """Whether a Dropout works as in training, or an input of the model decides that."""
    flag = node.inputs[_TRAINING] if len(node.inputs) > _TRAINING else None
    if flag is None:
        return False
    return flag.const_value is None or bool(flag.const_value.numpy().any())

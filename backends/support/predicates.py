"""Questions about a node that several backends ask before they take it.

Each `refuse_…` returns the reason in one sentence, or None. A backend's `supports` is a chain of them:
the first reason wins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from collage.partitioner.graph.graph_index import GraphIndex, NodeInfo
from collage.partitioner.tensor import TensorSpec

Refusal = Callable[[GraphIndex, NodeInfo], str | None]


def op_names(words: str) -> frozenset[str]:
    """The operators in a text, separated by blanks."""
    return frozenset(words.split())


def first_refusal(index: GraphIndex, node: NodeInfo, *questions: Refusal) -> str | None:
    """The first reason that one of the questions gives, or None."""
    for question in questions:
        reason = question(index, node)
        if reason is not None:
            return reason
    return None


def input_specs(index: GraphIndex, node: NodeInfo) -> list[TensorSpec]:
    """Specs of the inputs that are given, in order."""
    return [index.values[name] for name in node.inputs if name in index.values]


def output_specs(index: GraphIndex, node: NodeInfo) -> list[TensorSpec]:
    """Specs of the outputs that are named, in order."""
    return [index.values[name] for name in node.outputs if name in index.values]


def is_constant(index: GraphIndex, node: NodeInfo, position: int) -> bool:
    """True when the input at a position is given and is an initializer."""
    return position < len(node.inputs) and node.inputs[position] in index.constants


def rank_of(spec: TensorSpec | None) -> int | None:
    """Number of dimensions, or None where it is not known."""
    return None if spec is None or spec.shape is None else len(spec.shape)


def pads_evenly(node: NodeInfo) -> bool:
    """True when a window has as many pads at the begin of each axis as at its end."""
    pads = node.attributes.get("pads", ())
    is_even = isinstance(pads, tuple) and pads[: len(pads) // 2] == pads[len(pads) // 2 :]
    return is_even and node.attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")


def refuse_bodies(index: GraphIndex, node: NodeInfo) -> str | None:
    """Refuse If, Loop, Scan and the like."""
    return f"{node.op} has a body, which this runtime is not given" if node.has_body else None


def refuse_other_ops(known: Collection[str]) -> Refusal:
    """Refuse operators (`Conv`, `com.microsoft::Gelu`) that are not among the known ones."""

    def question(index: GraphIndex, node: NodeInfo) -> str | None:
        return None if node.op in known else f"this runtime does not know the operator {node.op}"

    return question


def refuse_dtypes(refused: Collection[str], of_inputs_only: bool = False) -> Refusal:
    """Refuse nodes that read (or, unless told otherwise, make) a variable of one of these dtypes."""

    def question(index: GraphIndex, node: NodeInfo) -> str | None:
        read = [s for s in input_specs(index, node) if s.name not in index.constants]
        made = [] if of_inputs_only else output_specs(index, node)
        for spec in (*read, *made):
            if spec.dtype in refused:
                return f"{node.op} has {spec.name!r} of {spec.dtype}, which this runtime does not take"
        return None

    return question


def refuse_unknown_shapes(index: GraphIndex, node: NodeInfo) -> str | None:
    """Refuse nodes with an input or output whose shape is known only when the model runs."""
    for spec in (*input_specs(index, node), *output_specs(index, node)):
        if not spec.is_static:
            return f"{node.op} has {spec.name!r}, whose shape is known only when the model runs"
    return None


def numpy_dtype(spec: TensorSpec) -> np.dtype:  # type: ignore[type-arg]
    """The numpy dtype of a tensor.

    Raises:
        ValueError: the value is not a tensor.
    """
    if spec.dtype == "unknown":
        raise ValueError(f"{spec.name!r} is not a tensor (a sequence, a map or an optional)")
    return np.dtype(spec.dtype)

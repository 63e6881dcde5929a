"""Declared shapes: what a file says of inner values and outputs is believed only where nothing contradicts it.

Exporters leave the shapes of a traced example behind, and a model whose batch was changed keeps the old ones. A constant
folded from a wrong one, or a buffer of its size, would be wrong too. So shapes are inferred from the inputs alone, and
only what inference leaves open is filled from the declared shapes, where a run does not contradict them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from collage.partitioner.ingest.constant_folding import infer

_SHOWN = 3
_MOST_PROVEN_ELEMENTS = 1 << 26  # a run keeps all values that are to be proven

Sizes = Sequence[int | ir.SymbolicDim] | ir.Shape


class DeclaredShapes:
    """The shapes of a model's inner values and outputs, taken away from it so that they can be inferred.

    Args:
        model: dimensions bound.
    """

    def __init__(self, model: ir.Model) -> None:
        self._by_name = {v.name: v.shape for v in _made(model) if v.name and v.shape is not None}
        self._in_bodies: list[tuple[ir.Value, ir.Shape | None]] = []
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            for value in filter(_is_tensor, node.outputs):
                if node.graph is not model.graph:
                    self._in_bodies.append((value, value.shape))
                value.shape = None

    def fill_ranks(self, model: ir.Model) -> None:
        """Give values without a shape the declared rank and names; a declared size may be that of a traced example."""
        for value in _made(model):
            declared = self._by_name.get(value.name or "")
            if value.shape is None and declared is not None:
                value.shape = ir.Shape([ir.SymbolicDim(None) if _is_size(d) else d for d in declared])

    def open_values(self, model: ir.Model) -> list[ir.Value]:
        """Values with a declared size where inference finds none; the first of them, where they are too large together."""
        left = _MOST_PROVEN_ELEMENTS
        found = []
        for value in filter(self._is_open, _made(model)):
            left -= math.prod(d for d in self._by_name[value.name or ""] if isinstance(d, int))
            if left >= 0:
                found.append(value)
        return found

    def _is_open(self, value: ir.Value) -> bool:
        declared = self._by_name.get(value.name or "")
        if declared is None or not value.type:
            return False
        known: Sizes = [ir.SymbolicDim(None)] * len(declared) if value.shape is None else value.shape
        return any(_is_size(d) and not _is_size(k) for d, k in zip(declared, known, strict=False))

    def fill(self, model: ir.Model, seen: Mapping[str, Sequence[int]], notes: list[str]) -> None:
        """Fill what inference left open, and tell which declared shapes are wrong.

        Args:
            model: its shapes are inferred.
            seen: shapes that values had in a run; a declared one that was not seen is believed.
            notes: gets a sentence where declared shapes contradict inference or the run.
        """
        wrong: list[str] = []
        for value in _made(model):
            declared, run = self._by_name.get(value.name or ""), seen.get(value.name or "")
            if declared is None:
                continue
            real: Sizes | None = run or value.shape
            if real is not None and _contradicts(declared, real):
                wrong.append(f"{value.name!r} (declared {_text(declared)}, really {_text(real)})")
                if value.shape is None:
                    value.shape = ir.Shape([None] * len(real))
            elif value.shape is None:
                value.shape = declared
            else:
                value.shape = ir.Shape(_merged(value.shape, declared))
        for value, shape in self._in_bodies:
            node = value.producer()
            # The nodes of a branch that was decided are in the main graph now.
            if value.shape is None and node is not None and node.graph is not model.graph:
                value.shape = shape
        infer(model)
        if wrong:
            more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
            notes.append(
                f"declared shapes that contradict the model are ignored: {', '.join(wrong[:_SHOWN])}{more}"
            )


def _made(model: ir.Model) -> Iterator[ir.Value]:
    """Tensors that nodes of the main graph make."""
    return (value for node in model.graph for value in node.outputs if _is_tensor(value))


def _is_tensor(value: ir.Value) -> bool:
    return value.type is None or isinstance(value.type, ir.TensorType)


def _is_size(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, int)


def _contradicts(declared: Sizes, real: Sizes) -> bool:
    if len(declared) != len(real):
        return True
    return any(_is_size(d) and _is_size(r) and d != r for d, r in zip(declared, real, strict=True))


def _merged(known: Sizes, declared: Sizes) -> Iterator[int | ir.SymbolicDim]:
    for own, said in zip(known, declared, strict=True):
        named = isinstance(own, ir.SymbolicDim) and own.value is not None
        yield own if _is_size(own) or (named and not _is_size(said)) else said


def _text(shape: Sizes) -> str:
    return "(" + ", ".join("?" if not isinstance(d, int) else str(d) for d in shape) + ")"

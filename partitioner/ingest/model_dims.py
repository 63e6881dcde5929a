"""The dimensions of a model's inputs and outputs: which are free, and which follow from others."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from collage.partitioner.errors import ModelError
from collage.partitioner.ingest.expressions import Linear, parse_sum
from collage.partitioner.lazy import ir

_MOST_NAMED = 12


@dataclass(frozen=True)
class TensorDims:
    """An input or output.

    Args:
        name: of the value.
        dtype: as numpy names it.
        dims: per axis a size, a name, or None where neither is known.
    """

    name: str
    dtype: str
    dims: tuple[int | str | None, ...]

    def key(self, axis: int) -> str:
        """What the dimension of an axis is called: its name, or `input:axis`."""
        dim = self.dims[axis]
        return dim if isinstance(dim, str) else f"{self.name}:{axis}"

    @property
    def text(self) -> str:
        """Its shape for messages, such as `(batch, 3, ?)`."""
        return "(" + ", ".join("?" if dim is None else str(dim) for dim in self.dims) + ")"


@dataclass(frozen=True)
class ModelDims:
    """The dimensions of a model.

    Args:
        inputs: in order; values without a rank are left out.
        outputs: the same.
    """

    inputs: tuple[TensorDims, ...]
    outputs: tuple[TensorDims, ...]

    @property
    def places(self) -> Mapping[str, tuple[tuple[TensorDims, int], ...]]:
        """Where the inputs have each free dimension, derived ones too, in order."""
        found: dict[str, list[tuple[TensorDims, int]]] = {}
        for tensor, axis in _free_axes(self.inputs):
            found.setdefault(tensor.key(axis), []).append((tensor, axis))
        return {name: tuple(places) for name, places in found.items()}

    @property
    def derived(self) -> Mapping[str, Linear]:
        """Dimensions of inputs that follow from others, such as `past + 1` where an input has `past`."""
        return derived_among(self.places)

    @property
    def free(self) -> tuple[str, ...]:
        """The dimensions that can be chosen."""
        return tuple(name for name in self.places if name not in self.derived)

    @property
    def scalars(self) -> tuple[str, ...]:
        """Integer inputs of one element, which may be given a value."""
        return tuple(t.name for t in self.inputs if t.dims in ((), (1,)) and "int" in t.dtype)

    def meant(self, name: str) -> str | int:
        """What a name means: a free dimension, or the size that the model fixes there.

        Args:
            name: of a dimension, or `input:axis`.

        Raises:
            ModelError: the model has no such dimension; the message says what it has.
        """
        if name in self.places:
            return name
        input_name, colon, axis_text = name.rpartition(":")
        tensor = next((t for t in self.inputs if t.name == input_name), None)
        if not colon or tensor is None or not axis_text.isdecimal():
            raise ModelError(self._unknown(name))
        axis = int(axis_text)
        if axis >= len(tensor.dims):
            raise ModelError(
                f"{name}: input {tensor.name} has rank {len(tensor.dims)} {tensor.text}, so its last axis "
                f"is {len(tensor.dims) - 1}"
            )
        dim = tensor.dims[axis]
        return dim if isinstance(dim, int) else tensor.key(axis)

    def _unknown(self, name: str) -> str:
        for output in self.outputs:
            for axis, dim in enumerate(output.dims):
                if name in (dim, f"{output.name}:{axis}"):
                    return (
                        f"dimension {name} is axis {axis} of output {output.name}: it depends on what the "
                        f"model computes, and cannot be given; leave it out"
                    )
        known = [*self.places, *self.scalars]
        near = difflib.get_close_matches(name, known, n=1)
        shown = ", ".join(known[:_MOST_NAMED]) + (" …" if len(known) > _MOST_NAMED else "")
        told = (
            f"; do you mean {near[0]}?"
            if near
            else f"; there are {shown}"
            if known
            else ": all are fixed"
        )
        return f"the model's inputs have no dimension {name}{told}"

    def place(self, name: str) -> str:
        """The first axis that has a dimension, for messages: `axis 1 of input x`."""
        tensor, axis = self.places[name][0]
        return f"axis {axis} of input {tensor.name}"


def derived_among(names: Iterable[str]) -> dict[str, Linear]:
    """The names that are sums of others among them."""
    known = set(names)
    sums = {name: parse_sum(name) for name in known}
    return {
        name: found
        for name, found in sums.items()
        if found is not None and all(part in known and sums[part] is None for part in found.names)
    }


class FreeDimensionsError(ModelError):
    """Dimensions of inputs have no size.

    Args:
        dims: those of the model.
    """

    def __init__(self, message: str, dims: ModelDims) -> None:
        super().__init__(message)
        self.dims = dims

    def __reduce__(self) -> tuple[type[FreeDimensionsError], tuple[str, ModelDims]]:
        return FreeDimensionsError, (str(self), self.dims)


def read_dims(model: ir.Model) -> ModelDims:
    """The dimensions of a model as its file says them; initializers are no inputs."""
    weights = model.graph.initializers
    inputs = [value for value in model.graph.inputs if value.name not in weights]
    return ModelDims(tuple(_tensors(inputs)), tuple(_tensors(model.graph.outputs)))


def _tensors(values: Iterable[ir.Value]) -> Iterator[TensorDims]:
    for value in values:
        if value.name is not None and value.shape is not None:
            dtype = "unknown" if value.dtype is None else value.dtype.name.lower()
            yield TensorDims(value.name, dtype, tuple(map(_dim, value.shape)))


def _dim(dim: int | ir.SymbolicDim) -> int | str | None:
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return dim.value if dim.value and dim.value != "?" else None


def _free_axes(tensors: Iterable[TensorDims]) -> Iterator[tuple[TensorDims, int]]:
    for tensor in tensors:
        for axis, dim in enumerate(tensor.dims):
            if not isinstance(dim, int):
                yield tensor, axis

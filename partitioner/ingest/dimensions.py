"""Dimensions: every free one of an input is bound to a size, or named as one that stays free.

A dimension is named by its ONNX name (`batch`), which binds it everywhere, or by its place
(`input:axis`, for example `x:0`), which goes first. A scalar integer input (a sample rate) may be bound
too: it becomes a constant, so that branches that depend on it alone are decided when folding.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from collage.partitioner.errors import ModelError
from collage.partitioner.ingest.expressions import bound
from collage.partitioner.ingest.model_dims import FreeDimensionsError, ModelDims, read_dims
from collage.partitioner.lazy import ir


def bind(model: ir.Model, dims: Mapping[str, int], kept: Collection[str] = ()) -> None:
    """Give every free dimension of the graph's inputs its value, in place.

    A dimension that is a sum of others, such as `past + 1`, follows from them.

    Args:
        model: the model; it is changed.
        dims: sizes by name or by `input:axis`, and values of scalar integer inputs by name.
        kept: dimensions that stay free, named in the same way; one named by its place gets that as its name.

    Raises:
        FreeDimensionsError: another dimension stays free; all are listed.
        ModelError: a name is unknown, a size is negative, or one contradicts the sum that its name is.
    """
    of_model = read_dims(model)
    # Where a dimension and an input have one name, the dimension is meant.
    known = _bind_scalars(model, {n: size for n, size in dims.items() if n not in of_model.places})
    for name, size in dims.items():
        if name not in known and (isinstance(size, bool) or not isinstance(size, int) or size < 0):
            raise ModelError(f"dimension {name}={size} must be a whole number that is not negative")
    dims = {**_sums(of_model, dims), **dims}
    names: dict[str, int | ir.SymbolicDim] = {**dims, **_staying(of_model, dims, kept)}
    free: list[str] = []
    for value in model.graph.inputs:
        if value.shape is None:
            if isinstance(value.type, ir.TensorType):
                raise ModelError(f"input {value.name!r} has no shape; give it one with its rank")
            continue
        value.shape = ir.Shape(_bound_axes(value, names, known, free))
    for name in (*dims, *kept):
        if name not in known:
            of_model.meant(name)
    if free:
        flags = dict.fromkeys(_flag_name(f) for f in free)
        example = " ".join(f"--dim {shlex.quote(f'{name}=1')}" for name in flags)
        message = f"free input dimensions: {', '.join(free)}; bind each, for example {example}"
        raise FreeDimensionsError(message, of_model)
    for value in _all_values(model):
        if value.shape is not None:
            value.shape = ir.Shape([_named(dim, dims) for dim in value.shape])


def _sums(model: ModelDims, dims: Mapping[str, int]) -> dict[str, int]:
    """Sizes of dimensions that follow from those that are given."""
    sizes: dict[str, int] = {}
    for name, found in model.derived.items():
        if not all(part in dims for part in found.names):
            continue
        sizes[name] = found.value(dims)
        given = ", ".join(f"{part}={dims[part]}" for part in found.names)
        if dims.get(name, sizes[name]) != sizes[name]:
            raise ModelError(
                f"{name}={dims[name]} contradicts {given}, with which {model.place(name)} has "
                f"{sizes[name]}; leave {name} out"
            )
        if sizes[name] < 0:
            raise ModelError(f"with {given}, {model.place(name)} has size {name} = {sizes[name]}")
    return sizes


def _staying(
    model: ModelDims, dims: Mapping[str, int], kept: Collection[str]
) -> dict[str, ir.SymbolicDim]:
    """The dimensions that stay free, and what follows from them."""
    known = {*dims, *kept}
    names = {name: name for name in kept}
    for name, found in model.derived.items():
        if name not in known and known.issuperset(found.names):
            names[name] = str(bound(name, dims))
    return {name: ir.SymbolicDim(text) for name, text in names.items()}


def _bind_scalars(model: ir.Model, dims: Mapping[str, int]) -> set[str]:
    bound: set[str] = set()
    for value in [v for v in model.graph.inputs if v.name in dims and _is_scalar_integer(v)]:
        assert value.name is not None and value.dtype is not None and value.shape is not None
        size = dims[value.name]
        limits = np.iinfo(value.dtype.numpy())
        if isinstance(size, bool) or not isinstance(size, int) or not limits.min <= size <= limits.max:
            raise ModelError(
                f"input {value.name}={size} must be a whole number that fits {value.dtype.name}"
            )
        array = np.full(value.shape.numpy(), size, value.dtype.numpy())
        model.graph.inputs.remove(value)
        value.const_value = ir.tensor(array, name=value.name)
        model.graph.register_initializer(value)
        bound.add(value.name)
    return bound


def _is_scalar_integer(value: ir.Value) -> bool:
    scalar = value.shape is not None and tuple(value.shape) in ((), (1,))
    return scalar and value.dtype is not None and value.dtype.is_integer()


def _bound_axes(
    value: ir.Value,
    dims: Mapping[str, int | ir.SymbolicDim],
    known: set[str],
    free: list[str],
) -> Iterator[int | ir.SymbolicDim]:
    assert value.shape is not None
    for axis, dim in enumerate(value.shape):
        place = f"{value.name}:{axis}"
        fixed = isinstance(dim, int) and dim >= 0
        name = dim.value if isinstance(dim, ir.SymbolicDim) else None
        known.add(place)
        known.update([name] if name else [])
        if fixed and dims.get(place, dim) != dim:
            raise ModelError(f"{place} is fixed at {dim} in the model and cannot become {dims[place]}")
        if fixed:
            yield dim
        elif place in dims:
            yield dims[place]
        elif name is not None and name in dims:
            yield dims[name]
        else:
            free.append(f"{place} ({name})" if name else place)
            yield dim


def _flag_name(free: str) -> str:
    place, _, name = free.rpartition(" (")
    return name[:-1] if place and name[:-1].isidentifier() else place or free


def _named(dim: int | ir.SymbolicDim, dims: Mapping[str, int]) -> int | ir.SymbolicDim:
    if isinstance(dim, int) and dim < 0:  # older exporters write so what is not known
        return ir.SymbolicDim(None)
    name = dim.value if isinstance(dim, ir.SymbolicDim) else None
    if name is None:
        return dim
    found = bound(name, dims)
    if isinstance(found, str):
        return ir.SymbolicDim(found)
    return found if found >= 0 else dim


def _all_values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.outputs
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        yield from node.outputs

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
from collage.partitioner.lazy import ir


def bind(model: ir.Model, dims: Mapping[str, int], kept: Collection[str] = ()) -> None:
    """Give every free dimension of the graph's inputs its value, in place.

    Args:
        model: the model; it is changed.
        dims: sizes by name or by `input:axis`, and values of scalar integer inputs by name.
        kept: dimensions that stay free, named in the same way; one named by its place gets that as its name.

    Raises:
        ModelError: another dimension stays free (all are listed), a name is unknown, or a size is negative.
    """
    known = _bind_scalars(model, dims)
    for name, size in dims.items():
        if name not in known and (isinstance(size, bool) or not isinstance(size, int) or size < 0):
            raise ModelError(f"dimension {name}={size} must be a whole number that is not negative")
    free: list[str] = []
    for value in model.graph.inputs:
        if value.shape is None:
            if isinstance(value.type, ir.TensorType):
                raise ModelError(f"input {value.name!r} has no shape; give it one with its rank")
            continue
        value.shape = ir.Shape(
            _bound_axes(value, {**dims, **{k: ir.SymbolicDim(k) for k in kept}}, known, free)
        )
    _refuse_unknown({*dims, *kept}, known)
    if free:
        flags = dict.fromkeys(_flag_name(f) for f in free)
        example = " ".join(f"--dim {shlex.quote(f'{name}=1')}" for name in flags)
        raise ModelError(f"free input dimensions: {', '.join(free)}; bind each, for example {example}")
    for value in _all_values(model):
        if value.shape is not None:
            value.shape = ir.Shape([_named(dim, dims) for dim in value.shape])


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


def _refuse_unknown(named: set[str], known: set[str]) -> None:
    unknown = sorted(named - known)
    if unknown:
        raise ModelError(
            f"the model's inputs have no dimension {', '.join(unknown)}; "
            f"there are {', '.join(sorted(known))}"
        )


def _named(dim: int | ir.SymbolicDim, dims: Mapping[str, int]) -> int | ir.SymbolicDim:
    if isinstance(dim, int) and dim < 0:  # older exporters write so what is not known
        return ir.SymbolicDim(None)
    name = dim.value if isinstance(dim, ir.SymbolicDim) else None
    return dims.get(name, dim) if name is not None else dim


def _all_values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.outputs
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        yield from node.outputs

"""What is said of dimensions, in the words of a model: its own free dimensions, each once."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collage.partitioner.errors import BadInputError
from collage.partitioner.ingest.model_dims import ModelDims, TensorDims
from collage.shapes.clusters import Point
from collage.shapes.dim_text import DimSizes, parse_dim
from collage.shapes.seen import Size
from collage.shapes.space import ShapeSpace, seen_space, stated_space


@dataclass(frozen=True)
class Stated:
    """What is said of a model's dimensions.

    Args:
        dims: sizes by free dimension of the model.
        values: of scalar integer inputs, by name.
        seen: sizes by free dimension of each shape that was seen, with its weight.
        unsaid: free dimensions that nothing is said of.
        samples: sizes by free dimension of sample inputs.
    """

    dims: Mapping[str, DimSizes]
    values: Mapping[str, int]
    seen: tuple[Point, ...]
    unsaid: tuple[str, ...]
    samples: tuple[Mapping[str, int], ...] = ()

    def with_samples(self, samples: Sequence[Mapping[str, int]]) -> Stated:
        """The same with sample inputs; their sizes are those of dimensions that nothing is said of."""
        told = () if not samples else self.unsaid
        if not told:
            return replace(self, samples=tuple(samples))
        first: Sequence[Point] = self.seen or [({}, 1.0)]
        seen = [
            ({**sizes, **{name: sample[name] for name in told}}, weight)
            for sizes, weight in first
            for sample in samples
        ]
        return replace(self, seen=tuple(seen), unsaid=(), samples=tuple(samples))

    def space(self, proposed: Mapping[str, str] | None = None) -> ShapeSpace:
        """The space of shapes.

        Args:
            proposed: texts for the dimensions that nothing is said of.

        Raises:
            BadInputError: what is said of a dimension contradicts the shapes that were seen.
        """
        more = {name: parse_dim(name, text) for name, text in (proposed or {}).items()}
        said = {**self.dims, **more}
        if self.seen:
            return seen_space(said, self.seen, samples=self.samples)
        return stated_space(said, samples=self.samples)


def flag(name: str, text: int | str) -> str:
    """The option that says a text of a dimension, as it is typed in a shell."""
    return f"--dim {shlex.quote(f'{name}={text}')}"


def stated(
    model: ModelDims,
    said: Mapping[str, int | str],
    shapes: Sequence[tuple[Mapping[str, Size], float]] = (),
) -> Stated:
    """What is said, by the free dimensions of a model.

    Args:
        model: its dimensions.
        said: a size or a text by name of a dimension, as `input:axis`, or by scalar integer input.
        shapes: shapes of inputs or sizes of dimensions, with weights.

    Raises:
        BadInputError: a dimension is unknown, a size is not the model's, or statements contradict each
            other; the message names the input and the axis.
    """
    dims: dict[str, DimSizes] = {}
    values: dict[str, int] = {}
    words: dict[str, str] = {}
    for name, text in said.items():
        sizes = parse_dim(name, text)
        if name in model.scalars and name not in model.places:
            values[name] = _value(name, sizes)
            continue
        key = model.meant(name)
        if isinstance(key, int):
            if not sizes.is_fixed or sizes.low != key:
                raise BadInputError(
                    f"{name} is fixed at {key} in the model and cannot become {text}; leave it out"
                )
            continue
        key, sizes = _base(model, key, sizes, f"{name}={text}")
        if key in dims and dims[key] != sizes:
            raise BadInputError(
                f"dimension {key} ({model.place(key)}): {words[key]} and {name}={text} contradict each "
                f"other; keep one --dim for it"
            )
        dims[key], words[key] = sizes, f"{name}={text}"
    seen = tuple((_sizes(model, shape), weight) for shape, weight in shapes)
    _same_dimensions(model, seen)
    named = {*dims, *(seen[0][0] if seen else ())}
    unsaid = tuple(name for name in model.free if name not in named)
    return Stated(dims, values, seen, unsaid)


def _value(name: str, sizes: DimSizes) -> int:
    if not sizes.is_fixed:
        raise BadInputError(
            f"{name} is an input, not a dimension, so it may be given one value only, such as "
            f"{flag(name, sizes.low)}"
        )
    return sizes.low


def _base(model: ModelDims, key: str, sizes: DimSizes, said: str) -> tuple[str, DimSizes]:
    """A statement on a dimension that follows from another, as one on that other."""
    found = model.derived.get(key)
    if found is None:
        return key, sizes
    if len(found.names) > 1:
        raise BadInputError(
            f"{said}: {model.place(key)} follows from {' and '.join(found.names)}; give those, such as "
            f"{flag(found.names[0], sizes.low)}"
        )
    (name,) = found.names
    solved = [found.solve(size) for size in (sizes.low, *sizes.sizes, sizes.high)]
    low, high = solved[0], solved[-1]
    if low is None or high is None or None in solved or sizes.step > 1:
        raise BadInputError(
            f"{said}: no size of {name} gives {model.place(key)} that size; give {name} instead, such as "
            f"{flag(name, 1)}"
        )
    ascending = sorted(
        zip([size for size in solved[1:-1] if size is not None], sizes.weights, strict=True)
    )
    inner, weights = zip(*ascending, strict=True)
    ends = min(low, high), max(low, high)
    return name, DimSizes(*ends, inner, weights, is_range=sizes.is_range)


def _sizes(model: ModelDims, shape: Mapping[str, Size]) -> dict[str, int]:
    """The size of each free dimension that a shape tells.

    Raises:
        BadInputError: a name is unknown, a rank is wrong, or sizes contradict the model or each other.
    """
    by_name = {tensor.name: tensor for tensor in model.inputs}
    found: dict[str, tuple[int, str]] = {}
    for name, said in shape.items():
        tensor = by_name.get(name)
        if isinstance(said, int):
            if tensor is not None and name not in model.places:
                raise BadInputError(
                    f"shapes: {name} is an input of shape {tensor.text}; give its whole shape, such as "
                    f"{_example(tensor)}"
                )
            key = model.meant(name)
            _note(model, found, key, said, f"shapes: {name}={said}")
            continue
        if tensor is None:
            raise BadInputError(
                f"shapes: the model has no input {name}; it has {', '.join(by_name) or 'none'}"
            )
        if len(said) != len(tensor.dims):
            raise BadInputError(
                f"shapes: input {name} has rank {len(tensor.dims)} {tensor.text}, but the shape "
                f"{list(said)} has rank {len(said)}; give it as {_example(tensor)}"
            )
        for axis, size in enumerate(said):
            dim = tensor.dims[axis]
            key = dim if isinstance(dim, int) else tensor.key(axis)
            _note(model, found, key, size, f"shapes: axis {axis} of input {name} is {size}")
    return _chosen(model, found)


def sizes_of(
    model: ModelDims, shapes: Mapping[str, Sequence[int]], option: str = "shapes"
) -> dict[str, int]:
    """The size of each free dimension for shapes of inputs.

    Args:
        model: its dimensions.
        shapes: by input.
        option: where they were given, for errors.

    Raises:
        BadInputError: a rank is wrong, or sizes contradict the model or each other; the message names the
            input and the axis.
    """
    try:
        return _sizes(model, {name: tuple(shape) for name, shape in shapes.items()})
    except BadInputError as error:
        raise type(error)(str(error).replace("shapes: ", f"{option}: ", 1)) from None


def _note(
    model: ModelDims, found: dict[str, tuple[int, str]], key: str | int, size: int, where: str
) -> None:
    if isinstance(key, int):
        if key != size:
            raise BadInputError(f"{where}, but the model fixes it at {key}")
        return
    known = found.setdefault(key, (size, where))
    if known[0] != size:
        raise BadInputError(
            f"{where}, but {known[1].removeprefix('shapes: ')}, and both are the dimension {key}"
        )


def _chosen(model: ModelDims, found: Mapping[str, tuple[int, str]]) -> dict[str, int]:
    """The sizes of dimensions that can be chosen; those that follow from them are checked."""
    sizes = {name: size for name, (size, _) in found.items() if name not in model.derived}
    for name, total in model.derived.items():
        if name not in found:
            continue
        size, where = found[name]
        missing = [part for part in total.names if part not in sizes]
        if len(total.names) == 1 and missing and (solved := total.solve(size)) is not None:
            sizes[missing[0]] = solved
        elif not missing and total.value(sizes) != size:
            parts = ", ".join(f"{part}={sizes[part]}" for part in total.names)
            raise BadInputError(f"{where}, but with {parts} it is {name} = {total.value(sizes)}")
    return sizes


def _same_dimensions(model: ModelDims, seen: Sequence[Point]) -> None:
    for sizes, _ in seen:
        for name in sizes.keys() ^ seen[0][0].keys():
            raise BadInputError(
                f"shapes: some tell dimension {name} ({model.place(name)}) and some do not; tell it in each, "
                f"or say it with {flag(name, 1)} alone"
            )


def _example(tensor: TensorDims) -> str:
    return f'{{"{tensor.name}": {[dim if isinstance(dim, int) else 1 for dim in tensor.dims]}}}'

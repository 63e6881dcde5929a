"""What is said of the free dimensions of a model, and the shapes that stand for it.

A dimension's text is a size (`1`), sizes that matter (`16,64,512`), the same with weights
(`16:0.5,512:0.2`), or a range (`1..512`, in steps `320..640/32`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from collage.partitioner.errors import BadInputError
from collage.shapes.clusters import MOST_SHAPES, Point, representatives
from collage.shapes.dim_text import DimSizes, parse_dim

__all__ = ["MOST_SHAPES", "DimSizes", "Shape", "ShapeSpace", "parse_dims"]

_MOST_POINTS = 4096


@dataclass(frozen=True)
class Shape:
    """A size for each free dimension.

    Args:
        sizes: by name of the dimension.
        weight: its share of all requests.
    """

    sizes: Mapping[str, int]
    weight: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", MappingProxyType(dict(self.sizes)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Shape, (dict(self.sizes), self.weight)


@dataclass(frozen=True)
class ShapeSpace:
    """All shapes that an artifact serves, and a few that stand for them.

    Args:
        dims: what each free dimension may be, by name or as `input:axis`.
        shapes: representative shapes, whose weights sum to 1.
    """

    dims: Mapping[str, DimSizes]
    shapes: tuple[Shape, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", MappingProxyType(dict(self.dims)))

    def __reduce__(self) -> tuple[Any, ...]:
        return ShapeSpace, (dict(self.dims), self.shapes)

    @property
    def is_fixed(self) -> bool:
        """Whether each dimension has one size."""
        return all(dim.is_fixed for dim in self.dims.values())

    def contains(self, sizes: Mapping[str, int]) -> bool:
        """Whether each dimension is given a size in its range."""
        return sizes.keys() == self.dims.keys() and all(
            sizes[name] in dim for name, dim in self.dims.items()
        )

    def with_values(self, values: Mapping[str, int]) -> ShapeSpace:
        """The same with more dimensions of one size each."""
        more = {name: DimSizes(size, size, (size,), (1.0,)) for name, size in values.items()}
        shapes = tuple(Shape({**shape.sizes, **values}, shape.weight) for shape in self.shapes)
        return ShapeSpace({**self.dims, **more}, shapes)

    def fewer(self, kept: Sequence[Shape]) -> ShapeSpace:
        """The same with some of its shapes; each of the others gives its weight to the nearest one.

        Args:
            kept: shapes of this space, at least one.
        """
        weights = [0.0] * len(kept)
        for shape in self.shapes:
            weights[min(range(len(kept)), key=lambda i: _distance(kept[i], shape))] += shape.weight
        shapes = (Shape(s.sizes, weight) for s, weight in zip(kept, weights, strict=True))
        return ShapeSpace(self.dims, tuple(shapes))

    def as_json(self) -> dict[str, Any]:
        """The space as `from_json` takes it."""
        return {
            "dims": {name: dim.as_json() for name, dim in self.dims.items()},
            "shapes": [{"sizes": dict(s.sizes), "weight": s.weight} for s in self.shapes],
        }

    @classmethod
    def from_json(cls, data: Any) -> ShapeSpace:
        """Read what `as_json` made.

        Raises:
            BadInputError: it is of another form, or a shape is outside the ranges.
        """
        try:
            dims = {str(name): DimSizes.from_json(name, dim) for name, dim in data["dims"].items()}
            shapes = tuple(
                Shape({str(n): size for n, size in shape["sizes"].items()}, float(shape["weight"]))
                for shape in data["shapes"]
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BadInputError(f"this is no space of shapes: {error}") from None
        space = cls(dims, shapes)
        for shape in shapes:
            if not space.contains(shape.sizes) or not 0 < shape.weight <= 1:
                raise BadInputError(f"shape {dict(shape.sizes)} is not in the space of shapes")
        if not math.isclose(math.fsum(shape.weight for shape in shapes), 1.0, rel_tol=1e-6):
            raise BadInputError("the weights of the shapes do not sum to 1")
        return space


def _distance(one: Shape, other: Shape) -> float:
    return sum(abs(math.log((one.sizes[n] + 0.5) / (other.sizes[n] + 0.5))) for n in one.sizes)


def parse_dims(
    dims: Mapping[str, int | str],
    shapes: Sequence[Mapping[str, Sequence[int]]] | None = None,
    *,
    most: int = MOST_SHAPES,
) -> ShapeSpace:
    """The space that texts of dimensions say, and shapes seen in production if they are given.

    Args:
        dims: a size or a text for each dimension.
        shapes: the shape of each input of one request, for each request. Their axes become dimensions
            `input:axis`, and the most frequent kinds of requests the representative shapes.
        most: at most so many representative shapes.

    Raises:
        BadInputError: a text is of another form, or what is said of a dimension contradicts itself.
    """
    said = {name: parse_dim(name, text) for name, text in dims.items()}
    if not shapes:
        return stated_space(said, most=most)
    seen = [
        {f"{name}:{axis}": size for name, sizes in shape.items() for axis, size in enumerate(sizes)}
        for shape in shapes
    ]
    return seen_space(said, [(sizes, 1.0) for sizes in seen], most=most)


def stated_space(
    said: Mapping[str, DimSizes],
    *,
    most: int = MOST_SHAPES,
    samples: Sequence[Mapping[str, int]] = (),
) -> ShapeSpace:
    """The space of dimensions whose sizes are known, with the combinations that stand for it.

    Args:
        said: of each dimension.
        most: at most so many stand for it.
        samples: sizes of sample inputs, of which some stand for a range, beside its ends.
    """
    return ShapeSpace(said, _of_product(said, most, samples))


def seen_space(
    said: Mapping[str, DimSizes],
    seen: Sequence[Point],
    *,
    most: int = MOST_SHAPES,
    samples: Sequence[Mapping[str, int]] = (),
) -> ShapeSpace:
    """The space of shapes that were seen; a dimension that a range is said of has that range.

    Args:
        said: what is said of dimensions besides.
        seen: sizes by dimension with a weight, each of the same dimensions.
        most: at most so many stand for it.
        samples: as `stated_space` takes them, for the other dimensions.

    Raises:
        BadInputError: the shapes have different dimensions, or contradict what is said of one.
    """
    names = list(seen[0][0])
    for sizes, _ in seen:
        if sizes.keys() != seen[0][0].keys():
            raise BadInputError(
                f"each shape must have the same inputs and axes: one has {', '.join(names)}, another "
                f"{', '.join(sizes)}"
            )
    dims = {**said, **{name: _seen_dim(name, said.get(name), seen) for name in names}}
    others = _of_product({name: dim for name, dim in dims.items() if name not in names}, most, samples)
    points = [
        ({**shape.sizes, **sizes}, shape.weight * weight) for shape in others for sizes, weight in seen
    ]
    return ShapeSpace(dims, _shapes(representatives(points, most)))


def _seen_dim(name: str, said: DimSizes | None, seen: Sequence[Point]) -> DimSizes:
    weights: dict[int, float] = {}
    for sizes, weight in seen:
        size = sizes[name]
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise BadInputError(f"dimension {name}: the size {size!r} of a shape is no whole number")
        if said is not None and size not in said:
            raise BadInputError(
                f"dimension {name}: a shape has size {size}, which is outside of {said.text}; "
                "widen the range, or leave the shape out"
            )
        weights[size] = weights.get(size, 0.0) + weight
    low, high, step = (
        (min(weights), max(weights), 1) if said is None else (said.low, said.high, said.step)
    )
    total = math.fsum(weights.values())
    sizes_seen = tuple(sorted(weights))
    return DimSizes(low, high, sizes_seen, tuple(weights[s] / total for s in sizes_seen), step)


def _of_product(
    dims: Mapping[str, DimSizes], most: int, samples: Sequence[Mapping[str, int]]
) -> tuple[Shape, ...]:
    """The shapes of all combinations of sizes that matter; those of all lowest and all highest stay."""
    if math.prod(len(dim.sizes) for dim in dims.values()) > _MOST_POINTS:
        points = list(_in_step(dims))
    else:
        points = list(_combined(dims))
    keep = [points[0], points[-1]]
    if samples and any(dim.is_range for dim in dims.values()):
        given = [({name: sample[name] for name in dims}, 1 / len(samples)) for sample in samples]
        points += given
        keep += representatives(given, most - len(keep))
    return _shapes(representatives(points, most, keep))


def _combined(dims: Mapping[str, DimSizes]) -> Iterator[Point]:
    weighted = [list(zip(dim.sizes, dim.weights, strict=True)) for dim in dims.values()]
    for choice in itertools.product(*weighted):
        chosen = {name: size for name, (size, _) in zip(dims, choice, strict=True)}
        yield chosen, math.prod(weight for _, weight in choice)


def _in_step(dims: Mapping[str, DimSizes]) -> Iterator[Point]:
    """Shapes where all dimensions grow together, for too many combinations."""
    count = max(len(dim.sizes) for dim in dims.values())
    for position in range(count):
        share = position / max(1, count - 1)
        chosen = {name: dim.sizes[round(share * (len(dim.sizes) - 1))] for name, dim in dims.items()}
        yield chosen, math.prod(dim.weights[dim.sizes.index(chosen[n])] for n, dim in dims.items())


def _shapes(points: Sequence[Point]) -> tuple[Shape, ...]:
    total = math.fsum(weight for _, weight in points)
    return tuple(Shape(sizes, weight / total) for sizes, weight in points)

"""What an artifact says of the shapes that it serves: a plan for each class of them.

Terms: the *extent* of a shape is the product of its sizes. A *class* holds the shapes up to an extent that are not in
the class before it. Its *plan* takes every shape at once. Its *hot* plan has partitions that are compiled for one shape
each; it takes over for a shape that has come so often that compiling pays.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from collage.partitioner.errors import BadInputError
from collage.partitioner.ingest.expressions import size_of
from collage.partitioner.tensor import TensorSpec
from collage.shapes.padding import Padding
from collage.shapes.space import ShapeSpace

if TYPE_CHECKING:
    from collage.partitioner.graph.model import Model

SHAPES_KEY = "collage.shapes"
FORMAT = 1

Treatment = Literal["dynamic", "exact", "bucket"]
# Of an input or output: a size or the name of a dimension for each axis; None where it has no name.
Axes = tuple[int | str | None, ...]


@dataclass(frozen=True)
class TreatedPlan:
    """A plan as text (`collage.partitioner.emit.plan_json`), and how each of its partitions is compiled."""

    plan: str
    treatments: tuple[Treatment, ...]


@dataclass(frozen=True)
class ShapeClass:
    """Shapes that are run alike.

    Args:
        up_to: the largest extent; None for the last class.
        plan: for every shape.
        hot: for shapes that come often; None where none is faster.
        hot_from: at which request of a shape the hot plan takes over.
        padding: how requests are padded for the hot plan; None where they are not.
    """

    up_to: int | None
    plan: TreatedPlan
    hot: TreatedPlan | None = None
    hot_from: int = 0
    padding: Padding | None = None


@dataclass(frozen=True)
class Proof:
    """Reference values at one shape, as `collage.artifact.verification` writes them, for the plan and the hot plan."""

    sizes: Mapping[str, int]
    plan: str
    hot: str | None = None


@dataclass(frozen=True)
class ServedShapes:
    """All that an artifact says of shapes.

    Args:
        space: the ranges, and the shapes that were measured.
        axes: of each input and output a size or the name of a dimension for each axis; None where it has no name.
        data_dependent: values whose shape does not follow from the shapes of the inputs.
        classes: by extent.
        proofs: one for each representative shape.
        most_copies: so many partitions are kept compiled for one shape each.
    """

    space: ShapeSpace
    axes: Mapping[str, Axes]
    data_dependent: tuple[str, ...]
    classes: tuple[ShapeClass, ...]
    proofs: tuple[Proof, ...]
    most_copies: int

    def class_of(self, sizes: Mapping[str, int]) -> int:
        """The position of the class of a shape."""
        own = extent({name: sizes[name] for name in self.space.dims})
        return next(i for i, one in enumerate(self.classes) if one.up_to is None or own <= one.up_to)

    def to_text(self) -> str:
        """As JSON, for the artifact's metadata."""
        return json.dumps(
            {
                "format": FORMAT,
                "space": self.space.as_json(),
                "axes": {name: list(axes) for name, axes in self.axes.items()},
                "data_dependent": list(self.data_dependent),
                "classes": [asdict(one) for one in self.classes],
                "proofs": [{**vars(proof), "sizes": dict(proof.sizes)} for proof in self.proofs],
                "most_copies": self.most_copies,
            },
            sort_keys=True,
        )

    @classmethod
    def from_text(cls, text: str) -> ServedShapes:
        """Read what `to_text` wrote.

        Raises:
            BadInputError: it is damaged, or of another format.
        """
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise BadInputError(
                    f"the artifact's shapes have format {data['format']!r}; this version reads {FORMAT}"
                )
            return cls(
                space=ShapeSpace.from_json(data["space"]),
                axes={name: tuple(axes) for name, axes in data["axes"].items()},
                data_dependent=tuple(data["data_dependent"]),
                classes=tuple(map(_class, data["classes"])),
                proofs=tuple(Proof(**proof) for proof in data["proofs"]),
                most_copies=data["most_copies"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadInputError(f"the artifact's shapes are damaged: {error}") from None


def extent(sizes: Mapping[str, int]) -> int:
    """By what classes are told apart: the product of the sizes."""
    return math.prod(sizes.values())


def axes_of(model: Model) -> dict[str, Axes]:
    """The axes of each input and output of a model."""
    graph = model.ir.graph
    return {
        value.name or "": tuple(
            dim if isinstance(dim, int) else dim.value for dim in (value.shape or ())
        )
        for value in (*graph.inputs, *graph.outputs)
    }


def sizes_of_arrays(
    shapes: Mapping[str, Sequence[int]], axes: Mapping[str, Axes], space: ShapeSpace
) -> tuple[dict[str, int], dict[str, str]]:
    """The size of each free dimension, those included that follow from others, and where it was found.

    Args:
        shapes: of the inputs, in order.
        axes: of these inputs.
        space: its dimensions can be chosen.

    Raises:
        BadInputError: a rank is wrong, or sizes contradict each other; the message names input and axis.
    """
    sizes: dict[str, int] = {}
    found_at: dict[str, str] = {}
    for name, shape in shapes.items():
        if len(shape) != len(axes[name]):
            raise BadInputError(
                f"input {name!r} must have {len(axes[name])} axes {_text(axes[name])}, not {tuple(shape)}"
            )
        for axis, (wanted, size) in enumerate(zip(axes[name], shape, strict=True)):
            place = f"input {name!r}, axis {axis}"
            if isinstance(wanted, int):
                if size != wanted:
                    raise BadInputError(f"{place}: the size is {size}, and the model has {wanted}")
            elif wanted is not None and sizes.setdefault(wanted, size) != size:
                raise BadInputError(
                    f"{place}: {wanted} is {size}, and {found_at[wanted]} gave it as {sizes[wanted]}"
                )
            elif wanted is not None:
                found_at.setdefault(wanted, place)
    own = {name: size for name, size in sizes.items() if name in space.dims}
    for name, size in sizes.items():
        follows = size if name in space.dims else size_of(name, own)
        if follows is not None and follows != size:
            raise BadInputError(f"{found_at[name]}: {name} is {size} and must be {follows}")
    return sizes, found_at


def specs_at(
    specs: Sequence[TensorSpec], axes: Mapping[str, Axes], sizes: Mapping[str, int]
) -> tuple[TensorSpec, ...]:
    """Inputs at some sizes of their dimensions."""
    return tuple(
        replace(
            spec,
            shape=tuple(size_of(d, sizes) if isinstance(d, str) else d for d in axes[spec.name]),
        )
        for spec in specs
    )


def _text(axes: Axes) -> str:
    return f"({', '.join(map(str, axes))})"


def _class(data: Mapping[str, Any]) -> ShapeClass:
    hot = data["hot"]
    return ShapeClass(
        up_to=data["up_to"],
        plan=_treated(data["plan"]),
        hot=None if hot is None else _treated(hot),
        hot_from=data["hot_from"],
        padding=None if data.get("padding") is None else Padding.from_json(data["padding"]),
    )


def _treated(data: Mapping[str, Any]) -> TreatedPlan:
    return TreatedPlan(data["plan"], tuple(data["treatments"]))
